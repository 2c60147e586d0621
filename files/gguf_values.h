#pragma once

// The key-value part of a GGUF file to be written; GgufMetadata reads it back.

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"

#include "files/gguf_metadata.h"

namespace quire::files {

// The bytes of a number in the file: little-endian, packed.
template <typename T>
requires std::is_arithmetic_v<T> std::string GgufBytes(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
// The bytes of a string in the file: its length, a uint64, and its characters.
std::string GgufBytes(std::string_view text);

// Keys in the order in which they were added, each once.
class GgufValues {
 public:
  void Int(std::string_view key, int64_t value);   // as uint32, or int64 if it does not fit
  void Float(std::string_view key, double value);  // as float32
  void Bool(std::string_view key, bool value);
  void String(std::string_view key, std::string_view value);
  void Ints(std::string_view key, std::span<const int32_t> values);
  void Floats(std::string_view key, std::span<const float> values);
  void Strings(std::string_view key, std::span<const std::string> values);

  void Append(const GgufValues& other);

  int64_t size() const { return std::ssize(values_); }
  // All values as in a file, one after another.
  std::string Bytes() const;
  // The same values as a reader sees them. Points into these values, which must not change while it
  // lives. `file` begins its errors. InvalidArgument for a key that was added twice.
  absl::StatusOr<GgufMetadata> View(std::string_view file) const;

 private:
  void Add(std::string_view key, GgufType type, std::string bytes);
  void AddArray(std::string_view key, GgufType element_type, size_t count, std::string bytes);

  struct Value {
    std::string key;
    GgufType type;  // kArray: `count` elements of element_type
    GgufType element_type;
    int64_t count;
    std::string bytes;  // of a string only its characters, as in GgufValue
  };
  std::vector<Value> values_;
};

}  // namespace quire::files
