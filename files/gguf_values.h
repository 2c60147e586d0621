#pragma once

// The key-value pairs of a GGUF file to be written. GgufMetadata reads such pairs.

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

// Returns the bytes of a number as they are in a GGUF file: little-endian, packed.
template <typename T>
requires std::is_arithmetic_v<T> std::string GgufBytes(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
// Returns the bytes of a string as they are in a GGUF file: the length as a uint64, then the
// characters.
std::string GgufBytes(std::string_view text);

// Key-value pairs, in the order in which they were added. A key must be added only once.
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
  // Returns the bytes of all key-value pairs, one after another, as in a file.
  std::string Bytes() const;
  // Returns these values as a reader of the file would see them. The result points into this
  // object, which must not change while the result lives. `file` is put at the start of the error
  // messages of the result. Returns InvalidArgument if a key was added twice.
  absl::StatusOr<GgufMetadata> View(std::string_view file) const;

 private:
  void Add(std::string_view key, GgufType type, std::string bytes);
  void AddArray(std::string_view key, GgufType element_type, size_t count, std::string bytes);

  struct Value {
    std::string key;
    GgufType type;  // kArray: `count` elements of element_type
    GgufType element_type;
    int64_t count;
    std::string bytes;  // in the form of GgufValue: a string is only its characters
  };
  std::vector<Value> values_;
};

}  // namespace quire::files
