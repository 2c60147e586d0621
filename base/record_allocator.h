#pragma once

// An allocator for the records of one kind that a loop reads one after another.

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <utility>

namespace quire::base {

// Allocates from a pool, which lives as long as any of its allocators. A pool puts records of one
// size side by side. Records that come one by one from the heap, between other data, are in a page
// each, and a loop over thousands of them walks the page table for each. Not thread-safe.
//
// Not for containers whose nodes are extracted: GCC 12's node handles leak the allocator's
// reference to the pool. Where nothing outlives the pool, containers of std::pmr do.
template <typename T>
class RecordAllocator {
 public:
  using value_type = T;

  RecordAllocator() : pool_(std::make_shared<std::pmr::unsynchronized_pool_resource>()) {}
  template <typename U>
  RecordAllocator(const RecordAllocator<U>& other) : pool_(other.pool_) {}  // NOLINT: converts

  T* allocate(size_t n) { return static_cast<T*>(pool_->allocate(n * sizeof(T), alignof(T))); }
  void deallocate(T* records, size_t n) { pool_->deallocate(records, n * sizeof(T), alignof(T)); }
  template <typename U>
  bool operator==(const RecordAllocator<U>& other) const {
    return pool_ == other.pool_;
  }

 private:
  template <typename U>
  friend class RecordAllocator;

  std::shared_ptr<std::pmr::memory_resource> pool_;
};

}  // namespace quire::base
