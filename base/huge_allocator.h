#pragma once

// An allocator for large tables that are read at random.

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include <sys/mman.h>

#include "base/math.h"

namespace quire::base {

// Allocates pages of 2 MiB, if Linux grants them, for tables of at least one such page. An element
// in a page of 4 KiB costs, besides the miss of the CPU cache, a walk of the page table. Smaller
// tables come from operator new.
template <typename T>
class HugeAllocator {
 public:
  using value_type = T;

  HugeAllocator() = default;
  template <typename U>
  HugeAllocator(const HugeAllocator<U>&) {}  // NOLINT: allocators are converted implicitly

  T* allocate(size_t n) {
    const size_t bytes = n * sizeof(T);
    if (bytes < kHugePage) return static_cast<T*>(::operator new(bytes));
    const size_t size = RoundUp(bytes, kHugePage);
    void* data = std::aligned_alloc(kHugePage, size);
    if (data == nullptr) throw std::bad_alloc();
    // If Linux ignores this advice, the memory works, but is slower.
    (void)madvise(data, size, MADV_HUGEPAGE);
    return static_cast<T*>(data);
  }
  void deallocate(T* data, size_t n) {
    if (n * sizeof(T) < kHugePage) {
      ::operator delete(data);
    } else {
      std::free(data);
    }
  }
  bool operator==(const HugeAllocator&) const { return true; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
};

template <typename T>
using HugeVector = std::vector<T, HugeAllocator<T>>;

}  // namespace quire::base
