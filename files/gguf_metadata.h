#pragma once

// The typed key-value part of a GGUF file: views into the file, checked when it was parsed.

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

// Numbers as in the file.
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
// "uint32"; "?" for a number that is no type.
std::string_view Name(GgufType type);
// Bytes of one number or bool; 0 for strings and arrays.
int64_t SizeOf(GgufType type);

struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::kUint8;          // kArray: `count` elements of element_type
  GgufType element_type = GgufType::kUint8;  // same as `type` unless that is kArray
  int64_t count = 1;
  // Numbers: little-endian, packed, unaligned. A string: its characters. An array of strings: each
  // is a uint64 length and its characters.
  std::span<const std::byte> bytes;
};

// Keys and values borrow the file. Immutable; thread-safe.
//
// Accessors return NotFound when the key is absent, InvalidArgument when the value is of another
// kind or does not fit. Integers of any width are one kind; Float also takes integers; an array
// accessor takes any array of its kind. The ...Or forms return `fallback` for an absent key only.
class GgufMetadata {
 public:
  // `file` begins every error.
  explicit GgufMetadata(std::string file) : file_(std::move(file)) {}
  // InvalidArgument when the key is already there.
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
  // The value, when it is a scalar (or, with `array`, an array).
  absl::StatusOr<const GgufValue*> Require(std::string_view key, bool array,
                                           std::string_view wanted) const;
  absl::Status WrongKind(const GgufValue& value, std::string_view wanted) const;

  std::string file_;
  std::vector<GgufValue> values_;
  std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace quire::files
