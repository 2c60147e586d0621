#include "files/gguf_metadata.h"

#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "files/printable.h"

namespace quire::files {
namespace {

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Reads an integer. Returns nothing when `type` is not an integer type, or the value does not fit
// an int64_t.
std::optional<int64_t> LoadInt(GgufType type, const std::byte* at) {
  switch (type) {
    case GgufType::kUint8:
      return Load<uint8_t>(at);
    case GgufType::kInt8:
      return Load<int8_t>(at);
    case GgufType::kUint16:
      return Load<uint16_t>(at);
    case GgufType::kInt16:
      return Load<int16_t>(at);
    case GgufType::kUint32:
      return Load<uint32_t>(at);
    case GgufType::kInt32:
      return Load<int32_t>(at);
    case GgufType::kInt64:
      return Load<int64_t>(at);
    case GgufType::kUint64: {
      const auto value = Load<uint64_t>(at);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> LoadFloat(GgufType type, const std::byte* at) {
  if (type == GgufType::kFloat32) return Load<float>(at);
  if (type == GgufType::kFloat64) return Load<double>(at);
  if (const auto value = LoadInt(type, at)) return static_cast<double>(*value);
  return std::nullopt;
}

std::string_view Characters(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string_view Name(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
      return "uint8";
    case GgufType::kInt8:
      return "int8";
    case GgufType::kUint16:
      return "uint16";
    case GgufType::kInt16:
      return "int16";
    case GgufType::kUint32:
      return "uint32";
    case GgufType::kInt32:
      return "int32";
    case GgufType::kFloat32:
      return "float32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kUint64:
      return "uint64";
    case GgufType::kInt64:
      return "int64";
    case GgufType::kFloat64:
      return "float64";
  }
  return "?";
}

int64_t SizeOf(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

absl::Status GgufMetadata::Add(const GgufValue& value) {
  if (!index_.emplace(value.key, values_.size()).second) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: key %s: want each key once, got it twice", file_, Printable(value.key)));
  }
  values_.push_back(value);
  return absl::OkStatus();
}

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &values_[found->second];
}

absl::Status GgufMetadata::WrongKind(const GgufValue& value, std::string_view wanted) const {
  const std::string got =
      value.type == GgufType::kArray
          ? absl::StrFormat("an array of %d %s", value.count, Name(value.element_type))
          : std::string(Name(value.type));
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s: want %s, got %s", file_, Printable(value.key), wanted, got));
}

absl::StatusOr<const GgufValue*> GgufMetadata::Require(std::string_view key, bool array,
                                                       std::string_view wanted) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return absl::NotFoundError(
        absl::StrFormat("%s: %s: want %s, got nothing: the key is absent", file_, key, wanted));
  }
  if ((value->type == GgufType::kArray) != array) return WrongKind(*value, wanted);
  return value;
}

absl::StatusOr<int64_t> GgufMetadata::Int(std::string_view key) const {
  constexpr std::string_view kWanted = "an integer up to 2^63 - 1";
  ASSIGN_OR_RETURN(const GgufValue* value, Require(key, /*array=*/false, kWanted));
  const auto number = LoadInt(value->type, value->bytes.data());
  if (!number) return WrongKind(*value, kWanted);
  return *number;
}

absl::StatusOr<double> GgufMetadata::Float(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Require(key, /*array=*/false, "a number"));
  const auto number = LoadFloat(value->type, value->bytes.data());
  if (!number) return WrongKind(*value, "a number");
  return *number;
}

absl::StatusOr<bool> GgufMetadata::Bool(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Require(key, /*array=*/false, "a bool"));
  if (value->type != GgufType::kBool) return WrongKind(*value, "a bool");
  return Load<uint8_t>(value->bytes.data()) != 0;
}

absl::StatusOr<std::string_view> GgufMetadata::String(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Require(key, /*array=*/false, "a string"));
  if (value->type != GgufType::kString) return WrongKind(*value, "a string");
  return Characters(value->bytes);
}

absl::StatusOr<std::vector<int64_t>> GgufMetadata::Ints(std::string_view key) const {
  constexpr std::string_view kWanted = "an array of integers up to 2^63 - 1";
  ASSIGN_OR_RETURN(const GgufValue* value, Require(key, /*array=*/true, kWanted));
  const int64_t size = SizeOf(value->element_type);
  std::vector<int64_t> numbers;
  numbers.reserve(static_cast<size_t>(value->count));
  for (int64_t i = 0; i < value->count; ++i) {
    const auto number = LoadInt(value->element_type, value->bytes.data() + i * size);
    if (!number) return WrongKind(*value, kWanted);
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<std::vector<double>> GgufMetadata::Floats(std::string_view key) const {
  constexpr std::string_view kWanted = "an array of numbers";
  ASSIGN_OR_RETURN(const GgufValue* value, Require(key, /*array=*/true, kWanted));
  const int64_t size = SizeOf(value->element_type);
  std::vector<double> numbers;
  numbers.reserve(static_cast<size_t>(value->count));
  for (int64_t i = 0; i < value->count; ++i) {
    const auto number = LoadFloat(value->element_type, value->bytes.data() + i * size);
    if (!number) return WrongKind(*value, kWanted);
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<std::vector<std::string_view>> GgufMetadata::Strings(std::string_view key) const {
  constexpr std::string_view kWanted = "an array of strings";
  ASSIGN_OR_RETURN(const GgufValue* value, Require(key, /*array=*/true, kWanted));
  // An empty array may have any element type, because it has no element of a wrong type.
  if (value->count > 0 && value->element_type != GgufType::kString) {
    return WrongKind(*value, kWanted);
  }
  std::vector<std::string_view> strings;
  strings.reserve(static_cast<size_t>(value->count));
  std::span<const std::byte> rest = value->bytes;
  for (int64_t i = 0; i < value->count; ++i) {  // lengths were checked when the file was parsed
    const auto length = static_cast<size_t>(Load<uint64_t>(rest.data()));
    strings.push_back(Characters(rest.subspan(sizeof(uint64_t), length)));
    rest = rest.subspan(sizeof(uint64_t) + length);
  }
  return strings;
}

absl::StatusOr<int64_t> GgufMetadata::IntOr(std::string_view key, int64_t fallback) const {
  return Has(key) ? Int(key) : fallback;
}

absl::StatusOr<double> GgufMetadata::FloatOr(std::string_view key, double fallback) const {
  return Has(key) ? Float(key) : fallback;
}

absl::StatusOr<std::string_view> GgufMetadata::StringOr(std::string_view key,
                                                        std::string_view fallback) const {
  return Has(key) ? String(key) : fallback;
}

}  // namespace quire::files
