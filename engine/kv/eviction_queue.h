#pragma once

// Cached blocks in the order of their eviction.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::engine {

// A binary heap that knows each block's place in it, so that a block used again is removed in O(log
// n). Nothing is allocated after construction. Not thread-safe.
class EvictionQueue {
 public:
  explicit EvictionQueue(int32_t num_blocks);

  // Adds a block. The block with the lowest value is evicted first. Among equal values, the block
  // that was pushed first is evicted first.
  void Push(int32_t block, int64_t value);
  void Remove(int32_t block);
  // Removes and returns the next block to evict; -1 when there is none.
  int32_t Pop();

  bool Contains(int32_t block) const { return place_[block] >= 0; }
  int32_t size() const { return static_cast<int32_t>(heap_.size()); }

 private:
  struct Entry {
    int64_t value = 0;
    uint64_t order = 0;
    int32_t block = -1;
    bool operator<(const Entry& other) const {
      return value != other.value ? value < other.value : order < other.order;
    }
  };
  void Put(size_t place, const Entry& entry);
  void SiftUp(size_t place);
  void SiftDown(size_t place);

  std::vector<Entry> heap_;
  std::vector<int32_t> place_;  // by block; -1: not in the queue
  uint64_t next_order_ = 0;
};

}  // namespace quire::engine
