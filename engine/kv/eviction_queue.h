#pragma once

// Cached blocks that may be evicted, by the class of their last use and by their age.

#include <array>
#include <cstdint>
#include <vector>

#include "base/huge_allocator.h"

namespace quire::engine {

// The queue keeps one list of blocks for each class and each slot of kSlotMs milliseconds in which
// a block was used last. The lists of the kNumSlots latest slots are a ring. Blocks that are older
// share one list of their class. A rank is given for each class and age, and the block with the
// lowest rank is evicted first.
//
// Push and Remove are O(1). Pop looks at the lists that are not empty, once for each batch of
// blocks, so its cost does not grow with the number of blocks. Nothing is allocated after
// construction. Not thread-safe.
class EvictionQueue {
 public:
  static constexpr int kSlotBits = 13;
  static constexpr int64_t kSlotMs = int64_t{1} << kSlotBits;
  static constexpr int32_t kNumSlots = 256;
  // Ages are counted in slots: 0 .. kNumSlots - 1, and kNumSlots for all greater ages.
  static constexpr int32_t kNumAges = kNumSlots + 1;
  using Ranks = std::array<float, kNumAges>;  // of one class, by age

  EvictionQueue(int32_t num_blocks, int32_t num_classes);

  enum class End : uint8_t { kFirst, kLast };
  // Adds a block that was used last at `time_ms` to that end of its list. A time after the latest
  // time of Advance counts as that time.
  void Push(int32_t block, int32_t reuse_class, int64_t time_ms, End end = End::kLast);
  void Remove(int32_t block);
  // Moves the time of the queue forward to `now_ms`. An earlier time has no effect.
  void Advance(int64_t now_ms);
  // Removes and returns the next block to evict; -1 when there is none. `ranks` holds the ranks of
  // each class. Among lists of equal rank, the one whose first block was pushed first is taken.
  // Up to size() / kPopsPerChoice blocks, at most
  // kMostPops, are taken from one list before the lists are compared again.
  int32_t Pop(const std::vector<Ranks>& ranks);

  // Returns the block that Pop is likely to return next; -1 when that is not known.
  int32_t LikelyNext() const {
    return num_left_ > 0 && !IsEmpty(chosen_) ? links_[chosen_].next : -1;
  }

  bool Contains(int32_t block) const { return links_[block].next >= 0; }
  int32_t size() const { return size_; }

  static constexpr int32_t kPopsPerChoice = 32;
  static constexpr int32_t kMostPops = 64;

 private:
  // The lists are circular. Each begins at an element behind those of the blocks.
  struct Link {
    int32_t next = -1;  // -1: not in a list
    int32_t previous = -1;
    uint64_t order = 0;  // of pushes
  };
  int32_t Head(int32_t reuse_class, int32_t place) const {
    return num_blocks_ + reuse_class * kNumAges + place;
  }
  int32_t Age(int32_t place) const {
    if (place == kNumSlots) return kNumSlots;
    return static_cast<int32_t>((now_slot_ - place) & (kNumSlots - 1));
  }
  bool IsEmpty(int32_t head) const { return links_[head].next == head; }
  void Retire(int64_t slot);
  int32_t Choose(const std::vector<Ranks>& ranks);

  const int32_t num_blocks_;
  const int32_t num_classes_;
  int64_t now_slot_ = 0;
  int32_t size_ = 0;
  uint64_t next_order_ = 0;
  base::HugeVector<Link> links_;  // of blocks, then of the heads of lists
  // For each class, the places that may hold blocks: bit `place` of its words. A bit is cleared
  // when its list is found empty.
  static constexpr int32_t kWords = (kNumAges + 63) / 64;
  std::vector<std::array<uint64_t, kWords>> filled_;
  int32_t chosen_ = -1;   // the head of the list from which blocks are taken
  int32_t num_left_ = 0;  // blocks that may still be taken from that list
};

}  // namespace quire::engine
