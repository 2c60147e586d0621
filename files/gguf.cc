#include "files/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/math.h"
#include "base/status_macros.h"
#include "files/ggml_types.h"
#include "files/printable.h"

namespace quire::files {
namespace {

constexpr std::string_view kArchitectureKey = "general.architecture";
constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr int64_t kMaxAlignment = int64_t{1} << 20;
constexpr uint64_t kMaxKeyBytes = 65535;  // limits of the format
constexpr uint64_t kMaxTensorNameBytes = 64;
constexpr uint32_t kMaxDims = 4;
// The smallest possible sizes of one entry in the file. A count of entries is refused if the rest
// of the file is too small for this many entries of the smallest size.
constexpr int64_t kMinKeyValueBytes = 8 + 1 + 4 + 1;
constexpr int64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// A tensor whose data is located by an offset in the data section, because the position of this
// section in the file is not known yet.
struct Placement {
  std::string_view name;
  const GgmlType* type;
  std::vector<int64_t> shape;
  int64_t offset;
  int64_t bytes;
};

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  absl::StatusOr<GgufContents> Parse();

 private:
  int64_t remaining() const { return static_cast<int64_t>(bytes_.size()) - position_; }

  absl::Status Error(std::string_view field, const std::string& wanted_and_got) const {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s", file_, field, wanted_and_got));
  }
  absl::Status Truncated(std::string_view field, uint64_t wanted) const {
    return Error(field,
                 absl::StrFormat("want %d bytes at byte %d, got %d: the file is truncated or "
                                 "damaged",
                                 wanted, position_, remaining()));
  }

  template <typename T>
  absl::Status Read(std::string_view field, T& value) {
    if (remaining() < static_cast<int64_t>(sizeof(T))) return Truncated(field, sizeof(T));
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return absl::OkStatus();
  }
  absl::Status ReadBytes(std::string_view field, uint64_t count, std::span<const std::byte>& part) {
    if (count > static_cast<uint64_t>(remaining())) return Truncated(field, count);
    part = bytes_.subspan(static_cast<size_t>(position_), static_cast<size_t>(count));
    position_ += static_cast<int64_t>(count);
    return absl::OkStatus();
  }
  absl::Status ReadName(std::string_view field, uint64_t most_bytes, std::string_view& name);
  absl::Status ReadCount(std::string_view field, int64_t min_entry_bytes, int64_t& count);
  absl::Status ReadHeader(GgufContents& contents, int64_t& num_tensors, int64_t& num_values);
  absl::Status ReadKeyValue(int64_t index, GgufMetadata& metadata);
  absl::Status ReadValue(const std::string& field, GgufValue& value);
  absl::Status CheckBools(const std::string& field, std::span<const std::byte> bools) const;
  absl::StatusOr<int64_t> ReadAlignment(const GgufMetadata& metadata) const;
  absl::StatusOr<Placement> ReadTensor(int64_t index, int64_t alignment);
  absl::StatusOr<std::vector<int64_t>> ReadShape(const std::string& field);
  absl::StatusOr<int64_t> TensorBytes(const std::string& field, const Placement& tensor) const;
  absl::Status CheckPlacements(const std::vector<Placement>& tensors, int64_t data_start) const;

  const std::span<const std::byte> bytes_;
  const std::string file_;
  int64_t position_ = 0;
};

absl::Status Parser::ReadName(std::string_view field, uint64_t most_bytes, std::string_view& name) {
  uint64_t length = 0;
  RETURN_IF_ERROR(Read(field, length));
  if (length == 0 || length > most_bytes) {
    return Error(field,
                 absl::StrFormat("want a length of 1 to %d bytes, got %d", most_bytes, length));
  }
  std::span<const std::byte> characters;
  RETURN_IF_ERROR(ReadBytes(field, length, characters));
  name = {reinterpret_cast<const char*>(characters.data()), characters.size()};
  return absl::OkStatus();
}

absl::Status Parser::ReadCount(std::string_view field, int64_t min_entry_bytes, int64_t& count) {
  uint64_t value = 0;
  RETURN_IF_ERROR(Read(field, value));
  const int64_t most = remaining() / min_entry_bytes;
  if (value > static_cast<uint64_t>(most)) {
    return Error(field, absl::StrFormat("want at most %d, which is what %d bytes can hold, got %d",
                                        most, remaining(), value));
  }
  count = static_cast<int64_t>(value);
  return absl::OkStatus();
}

absl::Status Parser::ReadHeader(GgufContents& contents, int64_t& num_tensors, int64_t& num_values) {
  std::span<const std::byte> magic;
  if (!HasGgufMagic(bytes_)) {
    const std::string_view start(reinterpret_cast<const char*>(bytes_.data()),
                                 std::min(bytes_.size(), kGgufMagic.size()));
    return Error("magic", absl::StrFormat("want \"GGUF\", got \"%s\"", Printable(start)));
  }
  RETURN_IF_ERROR(ReadBytes("magic", kGgufMagic.size(), magic));
  RETURN_IF_ERROR(Read("version", contents.version));
  if (contents.version != 0 && (contents.version & 0xFFFF) == 0) {
    return Error("version",
                 "want a little-endian file, got a big-endian one: convert it with "
                 "gguf-convert-endian");
  }
  if (contents.version < 2 || contents.version > 3) {
    return Error("version",
                 absl::StrFormat("want GGUF version 2 or 3, got %d%s", contents.version,
                                 contents.version == 1 ? ": convert the model again" : ""));
  }
  RETURN_IF_ERROR(ReadCount("tensor_count", kMinTensorBytes, num_tensors));
  return ReadCount("metadata_kv_count", kMinKeyValueBytes, num_values);
}

absl::Status Parser::CheckBools(const std::string& field, std::span<const std::byte> bools) const {
  for (const std::byte value : bools) {
    if (value > std::byte{1}) {
      return Error(field,
                   absl::StrFormat("want a bool of 0 or 1, got %d", static_cast<int>(value)));
    }
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadValue(const std::string& field, GgufValue& value) {
  uint32_t type = 0;
  RETURN_IF_ERROR(Read(field + ": type", type));
  value.type = value.element_type = static_cast<GgufType>(type);
  if (value.type == GgufType::kArray) {
    uint32_t element_type = 0;
    RETURN_IF_ERROR(Read(field + ": element type", element_type));
    value.element_type = static_cast<GgufType>(element_type);
    if (value.element_type == GgufType::kArray) {
      return Error(field, "want an array of numbers, bools or strings, got an array of arrays");
    }
  }
  if (Name(value.element_type) == "?") {
    return Error(field, absl::StrFormat("want a value type of 0 to 12, got %d",
                                        static_cast<uint32_t>(value.element_type)));
  }
  const bool strings = value.element_type == GgufType::kString;
  const int64_t element_bytes = strings ? 8 : SizeOf(value.element_type);
  if (value.type == GgufType::kArray) {
    RETURN_IF_ERROR(ReadCount(field + ": array length", element_bytes, value.count));
  }
  if (!strings) {
    RETURN_IF_ERROR(
        ReadBytes(field, static_cast<uint64_t>(value.count * element_bytes), value.bytes));
    if (value.element_type == GgufType::kBool) return CheckBools(field, value.bytes);
    return absl::OkStatus();
  }
  const int64_t begin = position_;
  for (int64_t i = 0; i < value.count; ++i) {
    uint64_t length = 0;
    RETURN_IF_ERROR(Read(field, length));
    RETURN_IF_ERROR(
        ReadBytes(field, length, value.bytes));  // the bytes of a string do not include the length
  }
  if (value.type == GgufType::kArray) {
    value.bytes =
        bytes_.subspan(static_cast<size_t>(begin), static_cast<size_t>(position_ - begin));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadKeyValue(int64_t index, GgufMetadata& metadata) {
  GgufValue value;
  RETURN_IF_ERROR(ReadName(absl::StrFormat("key %d", index), kMaxKeyBytes, value.key));
  RETURN_IF_ERROR(ReadValue("key " + Printable(value.key), value));
  return metadata.Add(value);
}

absl::StatusOr<int64_t> Parser::ReadAlignment(const GgufMetadata& metadata) const {
  ASSIGN_OR_RETURN(const int64_t alignment, metadata.IntOr(kAlignmentKey, kGgufDefaultAlignment));
  const bool power_of_two = alignment > 0 && (alignment & (alignment - 1)) == 0;
  if (!power_of_two || alignment < 8 || alignment > kMaxAlignment) {
    return Error(kAlignmentKey, absl::StrFormat("want a power of two from 8 to %d, got %d",
                                                kMaxAlignment, alignment));
  }
  return alignment;
}

absl::StatusOr<std::vector<int64_t>> Parser::ReadShape(const std::string& field) {
  uint32_t num_dims = 0;
  RETURN_IF_ERROR(Read(field + ": dimension count", num_dims));
  if (num_dims == 0 || num_dims > kMaxDims) {
    return Error(field, absl::StrFormat("want 1 to %d dimensions, got %d", kMaxDims, num_dims));
  }
  std::vector<int64_t> shape(num_dims);
  int64_t elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    uint64_t dim = 0;
    RETURN_IF_ERROR(Read(field + ": dimensions", dim));
    const int64_t most = std::numeric_limits<int64_t>::max() / elements;
    if (dim == 0 || dim > static_cast<uint64_t>(most)) {
      return Error(field, absl::StrFormat("want dimension %d in 1 to %d, got %d", i, most, dim));
    }
    elements *= static_cast<int64_t>(dim);
    shape[num_dims - 1 - i] = static_cast<int64_t>(dim);  // the file has the innermost first
  }
  return shape;
}

absl::StatusOr<int64_t> Parser::TensorBytes(const std::string& field,
                                            const Placement& tensor) const {
  const int64_t row = tensor.shape.back();
  if (row % tensor.type->block_elements != 0) {
    return Error(field,
                 absl::StrFormat("want rows of whole %s blocks of %d weights, got rows of %d",
                                 tensor.type->name, tensor.type->block_elements, row));
  }
  const int64_t blocks = NumElements(tensor.shape) / tensor.type->block_elements;
  if (blocks > static_cast<int64_t>(bytes_.size()) / tensor.type->block_bytes) {
    return Error(field,
                 absl::StrFormat("want data inside the file's %d bytes, got %d blocks of %d bytes",
                                 bytes_.size(), blocks, tensor.type->block_bytes));
  }
  return blocks * tensor.type->block_bytes;
}

absl::StatusOr<Placement> Parser::ReadTensor(int64_t index, int64_t alignment) {
  Placement tensor;
  RETURN_IF_ERROR(
      ReadName(absl::StrFormat("tensor %d: name", index), kMaxTensorNameBytes, tensor.name));
  const std::string field = "tensor " + Printable(tensor.name);
  ASSIGN_OR_RETURN(tensor.shape, ReadShape(field));
  uint32_t type = 0;
  RETURN_IF_ERROR(Read(field + ": type", type));
  tensor.type = FindGgmlType(type);
  if (tensor.type == nullptr) {
    return Error(field, absl::StrFormat("want a known ggml type, got type %d; computed with are %s",
                                        type, SupportedGgmlTypes()));
  }
  uint64_t offset = 0;
  RETURN_IF_ERROR(Read(field + ": offset", offset));
  if (offset % static_cast<uint64_t>(alignment) != 0) {
    return Error(field, absl::StrFormat("want an offset that is a multiple of %d, got %d",
                                        alignment, offset));
  }
  if (offset >= bytes_.size()) {
    return Error(field, absl::StrFormat("want an offset inside the file's %d bytes, got %d",
                                        bytes_.size(), offset));
  }
  tensor.offset = static_cast<int64_t>(offset);
  ASSIGN_OR_RETURN(tensor.bytes, TensorBytes(field, tensor));
  return tensor;
}

absl::Status Parser::CheckPlacements(const std::vector<Placement>& tensors,
                                     int64_t data_start) const {
  std::vector<const Placement*> by_offset;
  by_offset.reserve(tensors.size());
  for (const Placement& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const Placement* a, const Placement* b) { return a->offset < b->offset; });
  const int64_t data_bytes = static_cast<int64_t>(bytes_.size()) - data_start;
  const Placement* previous = nullptr;
  for (const Placement* tensor : by_offset) {
    const std::string field = "tensor " + Printable(tensor->name);
    if (tensor->offset > data_bytes - tensor->bytes) {
      return Error(
          field, absl::StrFormat("want bytes %d to %d, got a file that ends at %d: it is truncated "
                                 "or damaged",
                                 data_start + tensor->offset,
                                 data_start + tensor->offset + tensor->bytes, bytes_.size()));
    }
    if (previous != nullptr && tensor->offset < previous->offset + previous->bytes) {
      return Error(field,
                   absl::StrFormat("want data apart from other tensors', got an overlap with %s",
                                   Printable(previous->name)));
    }
    previous = tensor;
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufContents> Parser::Parse() {
  GgufContents contents{.metadata = GgufMetadata(file_)};
  int64_t num_tensors = 0;
  int64_t num_values = 0;
  RETURN_IF_ERROR(ReadHeader(contents, num_tensors, num_values));
  for (int64_t i = 0; i < num_values; ++i) RETURN_IF_ERROR(ReadKeyValue(i, contents.metadata));
  ASSIGN_OR_RETURN(contents.alignment, ReadAlignment(contents.metadata));
  RETURN_IF_ERROR(contents.metadata.StringOr(kArchitectureKey, "").status());

  std::vector<Placement> tensors;
  std::unordered_set<std::string_view> names;
  for (int64_t i = 0; i < num_tensors; ++i) {
    ASSIGN_OR_RETURN(Placement tensor, ReadTensor(i, contents.alignment));
    if (!names.insert(tensor.name).second) {
      return Error("tensor " + Printable(tensor.name), "want each name once, got it twice");
    }
    tensors.push_back(std::move(tensor));
  }

  const int64_t data_start = base::RoundUp(position_, contents.alignment);
  RETURN_IF_ERROR(CheckPlacements(tensors, data_start));
  for (Placement& tensor : tensors) {
    if (!tensor.type->weight_type) {
      contents.unusable_tensors.push_back({.name = std::string(tensor.name),
                                           .type_name = std::string(tensor.type->name),
                                           .shape = std::move(tensor.shape),
                                           .num_bytes = tensor.bytes});
      continue;
    }
    contents.tensors.push_back(
        {.name = std::string(tensor.name),
         .type = *tensor.type->weight_type,
         .shape = std::move(tensor.shape),
         .bytes = bytes_.subspan(static_cast<size_t>(data_start + tensor.offset),
                                 static_cast<size_t>(tensor.bytes))});
  }
  return contents;
}

}  // namespace

bool HasGgufMagic(std::span<const std::byte> bytes) {
  return bytes.size() >= kGgufMagic.size() &&
         std::memcmp(bytes.data(), kGgufMagic.data(), kGgufMagic.size()) == 0;
}

absl::StatusOr<GgufContents> ParseGguf(std::span<const std::byte> bytes, std::string_view file) {
  return Parser(bytes, file).Parse();
}

}  // namespace quire::files
