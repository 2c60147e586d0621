#pragma once

// The typed key-value pairs of a GGUF file. They are views into the file, and were checked when the
// file was parsed.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire::files {

// The types of values. The file uses the same numbers.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
// Returns the name of a type, such as "uint32"; "?" for a number that is no type.
std::string_view Name(GgufType type);
// Returns the size in bytes of one number or bool; 0 for strings and arrays.
int64_t SizeOf(GgufType type);

struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::kUint8;          // kArray: `count` elements of element_type
  GgufType element_type = GgufType::kUint8;  // same as `type` unless `type` is kArray
  int64_t count = 1;
  // Numbers are little-endian, packed and unaligned. A string is only its characters. In an array
  // of strings, each string is a uint64 length followed by its characters.
  std::span<const std::byte> bytes;
};

// The key-value pairs of a GGUF file. Keys and values point into the file. Immutable once filled;
// thread-safe. Accessors return NotFound when the key is absent, and InvalidArgument when the value
// is of another kind or does not fit. Int accepts integers of any width. Float also accepts
// integers. Ints accepts an array of integers, Floats an array of numbers, and Strings an array of
// strings. The ...Or forms return `fallback` only when the key is absent.
class GgufMetadata {
 public:
  // `file` is put at the start of every error message.
  explicit GgufMetadata(std::string file) : file_(std::move(file)) {}
  // Returns InvalidArgument when the key was already added.
  absl::Status Add(const GgufValue& value);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  const GgufValue* Find(std::string_view key) const;                // null when absent
  const std::vector<GgufValue>& values() const { return values_; }  // in file order
  const std::string& file() const { return file_; }

  absl::StatusOr<int64_t> Int(std::string_view key) const;
  absl::StatusOr<double> Float(std::string_view key) const;
  absl::StatusOr<bool> Bool(std::string_view key) const;
  absl::StatusOr<std::string_view> String(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view key) const;
  absl::StatusOr<std::vector<double>> Floats(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> Strings(std::string_view key) const;

  absl::StatusOr<int64_t> IntOr(std::string_view key, int64_t fallback) const;
  absl::StatusOr<double> FloatOr(std::string_view key, double fallback) const;
  absl::StatusOr<std::string_view> StringOr(std::string_view key, std::string_view fallback) const;

 private:
  // Returns the value of `key`. If `array` is true, the value must be an array, otherwise a scalar.
  // The message of an error names `wanted` as the expected kind.
  absl::StatusOr<const GgufValue*> Require(std::string_view key, bool array,
                                           std::string_view wanted) const;
  absl::Status WrongKind(const GgufValue& value, std::string_view wanted) const;

  std::string file_;
  std::vector<GgufValue> values_;
  std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace quire::files
