#pragma once

// Holds a file's bytes in memory, with the alignment of a mapped file. The allocation has exactly
// the size of the file, so that AddressSanitizer sees a read past the end.

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string_view>

namespace quire::testing {

class AlignedBytes {
 public:
  explicit AlignedBytes(std::string_view text)
      : bytes_(static_cast<std::byte*>(::operator new(text.size(), kAlignment))),
        size_(text.size()) {
    if (size_ != 0) __builtin_memcpy(bytes_.get(), text.data(), size_);
  }
  std::span<const std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kAlignment); }
  };
  std::unique_ptr<std::byte, Delete> bytes_;
  size_t size_;
};

}  // namespace quire::testing
