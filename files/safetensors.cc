#include "files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "files/printable.h"

namespace quire::files {
namespace {

using kernels::WeightType;
using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the safetensors library
constexpr size_t kMaxDims = 64;  // more than any library supports; limits error messages too
constexpr std::string_view kMetadata = "__metadata__";

struct SafetensorsType {
  std::string_view name;
  int bits;
  std::optional<WeightType> weight_type;
};

constexpr SafetensorsType kTypes[] = {
    {"F32", 32, WeightType::kF32},   {"F16", 16, WeightType::kF16},
    {"BF16", 16, WeightType::kBF16}, {"F64", 64, std::nullopt},
    {"I64", 64, std::nullopt},       {"U64", 64, std::nullopt},
    {"I32", 32, std::nullopt},       {"U32", 32, std::nullopt},
    {"I16", 16, std::nullopt},       {"U16", 16, std::nullopt},
    {"I8", 8, std::nullopt},         {"U8", 8, std::nullopt},
    {"BOOL", 8, std::nullopt},       {"F8_E4M3", 8, WeightType::kF8E4M3},
    {"F8_E5M2", 8, std::nullopt},    {"F8_E8M0", 8, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},    {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},         {"C64", 64, std::nullopt},
};

const SafetensorsType* FindType(std::string_view name) {
  for (const SafetensorsType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

std::string TypeNames() {
  std::string names;
  for (const SafetensorsType& type : kTypes) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", base::ToAbsl(type.name));
  }
  return names;
}

struct Placement {
  std::string name;
  const SafetensorsType* type;
  std::vector<int64_t> shape;
  int64_t begin;  // in the data section
  int64_t end;
};

// Returns `value` if it is an integer from 0 to 2^63 - 1, else nothing.
std::optional<int64_t> AsSize(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  absl::StatusOr<SafetensorsContents> Parse();

 private:
  absl::Status Error(std::string_view field, const std::string& wanted_and_got) const {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s", file_, field, wanted_and_got));
  }
  absl::StatusOr<json> ReadHeader();
  absl::Status CheckMetadata(const json& metadata) const;
  absl::StatusOr<Placement> ReadTensor(const std::string& name, const json& entry) const;
  absl::StatusOr<std::vector<int64_t>> ReadShape(const std::string& field, const json& entry) const;
  absl::Status CheckSize(const std::string& field, const Placement& tensor) const;
  absl::Status CheckTiling(const std::vector<Placement>& tensors) const;

  const std::span<const std::byte> bytes_;
  const std::string file_;
  std::span<const std::byte> data_;
};

absl::StatusOr<json> Parser::ReadHeader() {
  uint64_t length = 0;
  if (bytes_.size() < sizeof(length)) {
    return Error("header length",
                 absl::StrFormat("want 8 bytes, got %d: the file is truncated", bytes_.size()));
  }
  std::memcpy(&length, bytes_.data(), sizeof(length));
  const uint64_t most = std::min<uint64_t>(bytes_.size() - sizeof(length), kMaxHeaderBytes);
  if (length < 2 || length > most) {
    return Error("header length",
                 absl::StrFormat("want 2 to %d bytes, got %d: the file is truncated or no "
                                 "safetensors file",
                                 most, length));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + sizeof(length),
                              static_cast<size_t>(length));
  if (text.front() != '{') {
    return Error("header",
                 absl::StrFormat("want a JSON object, got \"%s\"", Printable(text.substr(0, 8))));
  }
  data_ = bytes_.subspan(sizeof(length) + static_cast<size_t>(length));
  return base::ParseJsonOfUniqueKeys(text, file_ + ": header");
}

absl::Status Parser::CheckMetadata(const json& metadata) const {
  const bool strings =
      metadata.is_object() && std::all_of(metadata.begin(), metadata.end(),
                                          [](const json& value) { return value.is_string(); });
  if (!strings) return Error(kMetadata, "want an object of strings, got something else");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> Parser::ReadShape(const std::string& field,
                                                       const json& entry) const {
  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) {
    return Error(field, "shape: want an array of sizes, got something else");
  }
  if (shape->size() > kMaxDims) {
    return Error(field, absl::StrFormat("shape: want at most %d dimensions, got %d", kMaxDims,
                                        shape->size()));
  }
  std::vector<int64_t> dims;
  dims.reserve(shape->size());
  for (const json& value : *shape) {
    const auto dim = AsSize(value);
    if (!dim) {
      return Error(field, absl::StrFormat("shape: want sizes of 0 to 2^63 - 1, got %s",
                                          Printable(value.dump())));
    }
    dims.push_back(*dim);
  }
  return dims;
}

absl::Status Parser::CheckSize(const std::string& field, const Placement& tensor) const {
  // Sizes are counted in bits, because some types are smaller than a byte. `most` does not
  // overflow, because no mapped file has 2^60 bytes.
  const int64_t most = static_cast<int64_t>(data_.size()) * 8;
  int64_t bits = tensor.type->bits;
  const bool empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
  for (const int64_t dim : tensor.shape) {
    if (!empty && dim > most / bits) {
      return Error(field,
                   absl::StrFormat("want a shape that fits the %d bytes of data, got %s %s",
                                   data_.size(), tensor.type->name, ShapeToString(tensor.shape)));
    }
    bits = empty ? 0 : bits * dim;
  }
  if (bits != (tensor.end - tensor.begin) * 8) {
    return Error(field, absl::StrFormat("data_offsets: want %d bytes, which is %s %s, got %d",
                                        bits / 8, tensor.type->name, ShapeToString(tensor.shape),
                                        tensor.end - tensor.begin));
  }
  return absl::OkStatus();
}

absl::StatusOr<Placement> Parser::ReadTensor(const std::string& name, const json& entry) const {
  const std::string field = "tensor " + Printable(name);
  if (!entry.is_object()) return Error(field, "want an object, got " + Printable(entry.dump()));
  Placement tensor{.name = name};

  const auto type = entry.find("dtype");
  if (type == entry.end() || !type->is_string())
    return Error(field, "dtype: want a string, got something else");
  tensor.type = FindType(type->get_ref<const std::string&>());
  if (tensor.type == nullptr) {
    return Error(field, absl::StrFormat("dtype: want one of %s, got %s", TypeNames(),
                                        Printable(type->get_ref<const std::string&>())));
  }
  ASSIGN_OR_RETURN(tensor.shape, ReadShape(field, entry));

  const auto offsets = entry.find("data_offsets");
  const bool pair = offsets != entry.end() && offsets->is_array() && offsets->size() == 2;
  const auto begin = pair ? AsSize((*offsets)[0]) : std::nullopt;
  const auto end = pair ? AsSize((*offsets)[1]) : std::nullopt;
  if (!begin || !end || *begin > *end || *end > static_cast<int64_t>(data_.size())) {
    return Error(field,
                 absl::StrFormat("data_offsets: want [begin, end] with begin <= end <= %d, got %s",
                                 data_.size(),
                                 offsets == entry.end() ? "nothing" : Printable(offsets->dump())));
  }
  tensor.begin = *begin;
  tensor.end = *end;
  RETURN_IF_ERROR(CheckSize(field, tensor));
  return tensor;
}

// Checks that `tensors`, given in file order, fill the data section without a gap or an overlap.
absl::Status Parser::CheckTiling(const std::vector<Placement>& tensors) const {
  int64_t expected = 0;
  for (const Placement& tensor : tensors) {
    if (tensor.begin != expected) {
      return Error("tensor " + Printable(tensor.name),
                   absl::StrFormat("data_offsets: want data to begin at %d, got %d: %s", expected,
                                   tensor.begin,
                                   tensor.begin < expected ? "it overlaps the tensor before it"
                                                           : "there is a gap before it"));
    }
    expected = tensor.end;
  }
  if (expected != static_cast<int64_t>(data_.size())) {
    return Error("data", absl::StrFormat("want %d bytes, which the header describes, got %d",
                                         expected, data_.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsContents> Parser::Parse() {
  ASSIGN_OR_RETURN(const json header, ReadHeader());
  std::vector<Placement> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) {
      RETURN_IF_ERROR(CheckMetadata(entry));
      continue;
    }
    ASSIGN_OR_RETURN(Placement tensor, ReadTensor(name, entry));
    tensors.push_back(std::move(tensor));
  }
  // An empty tensor must come before the tensor that begins at the same byte, so ties are sorted by
  // their end.
  std::ranges::sort(tensors, {}, [](const Placement& t) { return std::pair(t.begin, t.end); });
  RETURN_IF_ERROR(CheckTiling(tensors));

  SafetensorsContents contents;
  for (Placement& tensor : tensors) {
    const auto size = tensor.end - tensor.begin;
    if (tensor.type->weight_type) {
      contents.tensors.push_back(
          {.name = std::move(tensor.name),
           .type = *tensor.type->weight_type,
           .shape = std::move(tensor.shape),
           .bytes = data_.subspan(static_cast<size_t>(tensor.begin), static_cast<size_t>(size))});
    } else {
      contents.unusable_tensors.push_back({.name = std::move(tensor.name),
                                           .type_name = std::string(tensor.type->name),
                                           .shape = std::move(tensor.shape),
                                           .num_bytes = size});
    }
  }
  return contents;
}

}  // namespace

absl::StatusOr<SafetensorsContents> ParseSafetensors(std::span<const std::byte> bytes,
                                                     std::string_view file) {
  return Parser(bytes, file).Parse();
}

std::vector<std::string> SafetensorsIndex::Shards() const {
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of_tensor) shards.insert(shard);
  return {shards.begin(), shards.end()};
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view text,
                                                       std::string_view file) {
  ASSIGN_OR_RETURN(const json index, base::ParseJson(text, file));
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: weight_map: want an object of tensor names, got something else", file));
  }
  SafetensorsIndex result;
  for (const auto& [tensor, shard] : weight_map->items()) {
    const std::string* name = shard.get_ptr<const std::string*>();
    const bool plain = name != nullptr && name->ends_with(".safetensors") &&
                       !name->starts_with('.') && name->find('/') == std::string::npos &&
                       name->find('\0') == std::string::npos;
    if (!plain) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: weight_map: %s: want the name of a .safetensors file beside the index, got %s", file,
          Printable(tensor), Printable(name != nullptr ? *name : shard.dump())));
    }
    result.shard_of_tensor.emplace(tensor, *name);
  }
  return result;
}

}  // namespace quire::files
