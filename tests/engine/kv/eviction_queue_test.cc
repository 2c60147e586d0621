#include "engine/kv/eviction_queue.h"

#include <algorithm>
#include <cstdint>
#include <rapidcheck.h>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "tests/testing/pick.h"

namespace quire::engine {
namespace {

using testing::Pick;

TEST(EvictionQueueTest, TheLowestValueGoesFirst) {
  EvictionQueue queue(4);
  queue.Push(2, 30);
  queue.Push(0, -10);
  queue.Push(3, 20);
  EXPECT_EQ(queue.Pop(), 0);
  EXPECT_EQ(queue.Pop(), 3);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), -1);
}

TEST(EvictionQueueTest, AmongEqualsTheFirstPutInGoesFirst) {
  EvictionQueue queue(4);
  for (const int32_t block : {3, 1, 0, 2}) queue.Push(block, 5);
  queue.Remove(3);
  queue.Push(3, 5);  // block 3 was used again, so it leaves last
  for (const int32_t block : {1, 0, 2, 3}) EXPECT_EQ(queue.Pop(), block);
}

TEST(EvictionQueueTest, WhatIsUsedAgainLeavesFromAnyPlace) {
  for (int32_t removed = 0; removed < 7; ++removed) {
    EvictionQueue queue(7);
    for (int32_t block = 0; block < 7; ++block) queue.Push(block, block * 5 % 7);
    queue.Remove(removed);
    EXPECT_FALSE(queue.Contains(removed));
    EXPECT_EQ(queue.size(), 6);
    for (int32_t value = 0; value < 7; ++value) {
      const int32_t block = value * 3 % 7;  // 3 is the inverse of 5 modulo 7
      if (block == removed) continue;
      EXPECT_EQ(queue.Pop(), block);
    }
  }
}

// A naive EvictionQueue, which searches a plain list.
class NaiveQueue {
 public:
  void Push(int32_t block, int64_t value) { entries_.emplace_back(value, next_order_++, block); }
  bool Contains(int32_t block) const { return Find(block) != entries_.end(); }
  void Remove(int32_t block) { entries_.erase(Find(block)); }
  int32_t Pop() {
    if (entries_.empty()) return -1;
    const int32_t block = std::get<2>(*std::ranges::min_element(entries_));
    Remove(block);
    return block;
  }
  size_t size() const { return entries_.size(); }

 private:
  using Entry = std::tuple<int64_t, int64_t, int32_t>;  // value, order, block
  std::vector<Entry>::const_iterator Find(int32_t block) const {
    return std::ranges::find(entries_, block,
                             [](const Entry& entry) { return std::get<2>(entry); });
  }

  std::vector<Entry> entries_;
  int64_t next_order_ = 0;
};

TEST(EvictionQueuePropertyTest, IsASortedList) {
  int64_t num_popped = 0, num_removed = 0;
  EXPECT_TRUE(rc::check([&] {
    constexpr int32_t kNumBlocks = 24;
    EvictionQueue queue(kNumBlocks);
    NaiveQueue naive;
    for (int i = Pick(0, 100); i > 0; --i) {
      const int32_t block = Pick(0, kNumBlocks - 1);
      if (Pick(0, 3) == 0) {
        num_popped += naive.size() > 0 ? 1 : 0;
        RC_ASSERT(queue.Pop() == naive.Pop());
      } else if (naive.Contains(block)) {
        ++num_removed;
        queue.Remove(block);
        naive.Remove(block);
      } else {
        const int value = Pick(-3, 3);  // many values are equal
        queue.Push(block, value);
        naive.Push(block, value);
      }
      RC_ASSERT(queue.size() == static_cast<int32_t>(naive.size()));
      for (int32_t k = 0; k < kNumBlocks; ++k) RC_ASSERT(queue.Contains(k) == naive.Contains(k));
    }
    while (naive.size() > 0) RC_ASSERT(queue.Pop() == naive.Pop());
    RC_ASSERT(queue.Pop() == -1);
  }));
  EXPECT_GT(num_popped, 100);
  EXPECT_GT(num_removed, 100);
}

}  // namespace
}  // namespace quire::engine
