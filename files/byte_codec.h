#pragma once

// Writes numbers and texts one after the other, and reads them back. Numbers take eight bytes, the
// least significant first, and a text follows its length, so equal data has equal bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::files {

class ByteWriter {
 public:
  void Add(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
      bytes_.push_back(static_cast<char>(value >> shift));
    }
  }
  void AddSized(std::string_view text) {
    Add(text.size());
    bytes_.append(text);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// What is read beyond the end is 0 or empty, and ok() is then false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  uint64_t Number() {
    const std::string_view eight = Take(8);
    uint64_t value = 0;
    for (size_t i = 0; i < eight.size(); ++i) {
      value |= uint64_t{static_cast<unsigned char>(eight[i])} << (8 * i);
    }
    return value;
  }
  std::string_view Sized() { return Take(Number()); }
  // Reads the number of items that follow, each of which has `item_bytes` bytes at least. So a
  // number that was read may be allocated for.
  uint64_t Count(uint64_t item_bytes) {
    const uint64_t count = Number();
    if (count <= bytes_.size() / item_bytes) return count;
    ok_ = false;
    return 0;
  }

  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view Take(uint64_t size) {
    if (size > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace quire::files
