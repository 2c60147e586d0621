#include "files/gguf_values.h"

#include <limits>
#include <utility>

#include "base/status_macros.h"

namespace quire::files {

std::string GgufBytes(std::string_view text) {
  return GgufBytes(static_cast<uint64_t>(text.size())) + std::string(text);
}

void GgufValues::Add(std::string_view key, GgufType type, std::string bytes) {
  values_.push_back({std::string(key), type, type, 1, std::move(bytes)});
}

void GgufValues::AddArray(std::string_view key, GgufType element_type, size_t count,
                          std::string bytes) {
  values_.push_back({std::string(key), GgufType::kArray, element_type, static_cast<int64_t>(count),
                     std::move(bytes)});
}

void GgufValues::Int(std::string_view key, int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<uint32_t>::max()) {
    Add(key, GgufType::kUint32, GgufBytes(static_cast<uint32_t>(value)));
  } else {
    Add(key, GgufType::kInt64, GgufBytes(value));
  }
}

void GgufValues::Float(std::string_view key, double value) {
  Add(key, GgufType::kFloat32, GgufBytes(static_cast<float>(value)));
}

void GgufValues::Bool(std::string_view key, bool value) {
  Add(key, GgufType::kBool, GgufBytes(static_cast<uint8_t>(value ? 1 : 0)));
}

void GgufValues::String(std::string_view key, std::string_view value) {
  Add(key, GgufType::kString, std::string(value));
}

void GgufValues::Ints(std::string_view key, std::span<const int32_t> values) {
  std::string bytes;
  for (const int32_t value : values) bytes += GgufBytes(value);
  AddArray(key, GgufType::kInt32, values.size(), std::move(bytes));
}

void GgufValues::Floats(std::string_view key, std::span<const float> values) {
  std::string bytes;
  for (const float value : values) bytes += GgufBytes(value);
  AddArray(key, GgufType::kFloat32, values.size(), std::move(bytes));
}

void GgufValues::Strings(std::string_view key, std::span<const std::string> values) {
  std::string bytes;
  for (const std::string& value : values) bytes += GgufBytes(std::string_view(value));
  AddArray(key, GgufType::kString, values.size(), std::move(bytes));
}

void GgufValues::Append(const GgufValues& other) {
  values_.insert(values_.end(), other.values_.begin(), other.values_.end());
}

std::string GgufValues::Bytes() const {
  std::string bytes;
  for (const Value& value : values_) {
    bytes += GgufBytes(std::string_view(value.key));
    bytes += GgufBytes(static_cast<uint32_t>(value.type));
    if (value.type == GgufType::kArray) {
      bytes += GgufBytes(static_cast<uint32_t>(value.element_type));
      bytes += GgufBytes(static_cast<uint64_t>(value.count));
    }
    bytes +=
        value.type == GgufType::kString ? GgufBytes(std::string_view(value.bytes)) : value.bytes;
  }
  return bytes;
}

absl::StatusOr<GgufMetadata> GgufValues::View(std::string_view file) const {
  GgufMetadata metadata{std::string(file)};
  for (const Value& value : values_) {
    RETURN_IF_ERROR(metadata.Add({.key = value.key,
                                  .type = value.type,
                                  .element_type = value.element_type,
                                  .count = value.count,
                                  .bytes = std::as_bytes(std::span(value.bytes))}));
  }
  return metadata;
}

}  // namespace quire::files
