#include "engine/kv/eviction_queue.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <rapidcheck.h>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/testing/pick.h"

namespace quire::engine {
namespace {

using testing::Pick;
using Ranks = std::vector<EvictionQueue::Ranks>;

constexpr int64_t kSlot = EvictionQueue::kSlotMs;
constexpr int32_t kNumSlots = EvictionQueue::kNumSlots;

// Ranks that fall with age, the same ones for all classes.
Ranks Recency(int32_t num_classes) {
  Ranks ranks(num_classes);
  for (EvictionQueue::Ranks& of_class : ranks) {
    for (int32_t age = 0; age < EvictionQueue::kNumAges; ++age) {
      of_class[age] = static_cast<float>(-age);
    }
  }
  return ranks;
}

TEST(EvictionQueueTest, TheLowestRankGoesFirst) {
  EvictionQueue queue(4, 2);
  Ranks ranks = Recency(2);
  ranks[1].fill(-2.5f);
  queue.Advance(4 * kSlot);
  queue.Push(0, 0, 4 * kSlot);  // age 0
  queue.Push(1, 0, 1 * kSlot);  // age 3
  queue.Push(2, 0, 2 * kSlot);  // age 2
  queue.Push(3, 1, 4 * kSlot);
  for (const int32_t block : {1, 3, 2, 0, -1}) EXPECT_EQ(queue.Pop(ranks), block);
}

TEST(EvictionQueueTest, AmongEqualsTheFirstPutInGoesFirst) {
  EvictionQueue queue(4, 2);
  const Ranks ranks = Recency(2);
  queue.Push(3, 0, 5);
  queue.Push(1, 1, 5);
  queue.Push(0, 0, 4);
  queue.Push(2, 1, 3);
  queue.Remove(3);
  queue.Push(3, 0, 5);  // block 3 was used again, so it leaves last
  for (const int32_t block : {1, 0, 2, 3}) EXPECT_EQ(queue.Pop(ranks), block);
}

TEST(EvictionQueueTest, APathIsEvictedToItsBeginning) {
  EvictionQueue queue(4, 1);
  queue.Push(0, 0, 5);
  queue.Push(1, 0, 5);
  EXPECT_EQ(queue.Pop(Recency(1)), 0);
  queue.Push(2, 0, 5, EvictionQueue::End::kFirst);  // the parent of block 0
  EXPECT_EQ(queue.Pop(Recency(1)), 2);
  EXPECT_EQ(queue.Pop(Recency(1)), 1);
}

TEST(EvictionQueueTest, ABatchIsTakenFromOneList) {
  constexpr int32_t kNumBlocks = 3 * EvictionQueue::kPopsPerChoice;
  EvictionQueue queue(kNumBlocks, 2);
  for (int32_t block = 0; block < kNumBlocks; ++block) queue.Push(block, block % 2, 0);
  // Three blocks are taken from the list of class 0, then the first of class 1 is older.
  for (const int32_t block : {0, 2, 4, 1}) EXPECT_EQ(queue.Pop(Recency(2)), block);
}

TEST(EvictionQueueTest, AgesAreCountedToTheLastSlot) {
  for (const int32_t age : {0, 1, kNumSlots - 1, kNumSlots, 5 * kNumSlots}) {
    EvictionQueue queue(2, 2);
    Ranks ranks(2);
    ranks[0].fill(1.0f);
    ranks[0][std::min(age, kNumSlots)] = -1.0f;
    ranks[1].fill(0.0f);
    queue.Push(0, 0, 0);
    queue.Push(1, 1, 0);
    queue.Advance(age * kSlot + (age > 0 ? 0 : kSlot - 1));
    EXPECT_EQ(queue.Pop(ranks), 0) << "age " << age;
    EXPECT_EQ(queue.Pop(ranks), 1);
  }
}

TEST(EvictionQueueTest, TimeDoesNotGoBack) {
  EvictionQueue queue(2, 1);
  queue.Advance(3 * kSlot);
  queue.Advance(kSlot);
  queue.Push(0, 0, 9 * kSlot);  // counts as slot 3
  queue.Push(1, 0, 2 * kSlot);
  EXPECT_EQ(queue.Pop(Recency(1)), 1);
  EXPECT_EQ(queue.Pop(Recency(1)), 0);
}

// Keeps plain lists, and searches them for the next block.
class NaiveQueue {
 public:
  void Push(int32_t block, int32_t reuse_class, int64_t time_ms, EvictionQueue::End end) {
    auto& list = lists_[{reuse_class, SlotOf(std::min(time_ms / kSlot, now_slot_))}];
    list.insert(end == EvictionQueue::End::kFirst ? list.begin() : list.end(),
                {block, next_order_++});
  }
  void Remove(int32_t block) {
    for (auto& [key, list] : lists_) {
      std::erase_if(list, [&](const Entry& entry) { return entry.block == block; });
    }
  }
  bool Contains(int32_t block) const {
    return std::ranges::any_of(lists_, [&](const auto& list) {
      return std::ranges::find(list.second, block, &Entry::block) != list.second.end();
    });
  }
  void Advance(int64_t now_ms) {
    now_slot_ = std::max(now_slot_, now_ms / kSlot);
    std::map<Key, std::vector<Entry>> lists;
    for (const auto& [key, list] : lists_) {  // in the order of classes, then of slots
      auto& target = lists[{key.first, SlotOf(key.second)}];
      target.insert(target.end(), list.begin(), list.end());
    }
    lists_ = lists;
  }
  int32_t Pop(const Ranks& ranks) {
    std::vector<std::tuple<float, int64_t, int32_t>> firsts;
    for (const auto& [key, list] : lists_) {
      if (list.empty()) continue;
      const int64_t age = key.second == kOld ? kNumSlots : now_slot_ - key.second;
      firsts.emplace_back(ranks[key.first][age], list.front().order, list.front().block);
    }
    if (firsts.empty()) return -1;
    const int32_t block = std::get<2>(*std::ranges::min_element(firsts));
    Remove(block);
    return block;
  }
  size_t size() const {
    size_t size = 0;
    for (const auto& [key, list] : lists_) size += list.size();
    return size;
  }

 private:
  static constexpr int64_t kOld = -1;
  struct Entry {
    int32_t block = 0;
    int64_t order = 0;
  };
  using Key = std::pair<int32_t, int64_t>;  // class and slot
  int64_t SlotOf(int64_t slot) const { return slot <= now_slot_ - kNumSlots ? kOld : slot; }

  std::map<Key, std::vector<Entry>> lists_;
  int64_t now_slot_ = 0;
  int64_t next_order_ = 0;
};

TEST(EvictionQueuePropertyTest, IsAListThatIsSearched) {
  int64_t num_popped = 0, num_removed = 0, num_old = 0;
  EXPECT_TRUE(rc::check([&] {
    // With fewer than 2 * kPopsPerChoice blocks each Pop compares all lists.
    constexpr int32_t kNumBlocks = 24;
    constexpr int32_t kNumClasses = 3;
    EvictionQueue queue(kNumBlocks, kNumClasses);
    NaiveQueue naive;
    Ranks ranks(kNumClasses);
    for (EvictionQueue::Ranks& of_class : ranks) {
      for (float& rank : of_class) rank = static_cast<float>(Pick(0, 3));
    }
    int64_t now_ms = 0;
    for (int i = Pick(0, 150); i > 0; --i) {
      const int32_t block = Pick(0, kNumBlocks - 1);
      if (Pick(0, 7) == 0) {
        now_ms += Pick(0, 3) == 0 ? Pick(0, 400) * kSlot : Pick(0, 3 * kSlot);
        queue.Advance(now_ms);
        naive.Advance(now_ms);
      } else if (Pick(0, 3) == 0) {
        num_popped += naive.size() > 0 ? 1 : 0;
        const int32_t popped = queue.Pop(ranks);
        const int32_t expected = naive.Pop(ranks);
        RC_ASSERT(popped == expected);
      } else if (naive.Contains(block)) {
        ++num_removed;
        queue.Remove(block);
        naive.Remove(block);
      } else {
        const int32_t reuse_class = Pick(0, kNumClasses - 1);
        const int64_t time_ms = std::max(int64_t{0}, now_ms - Pick(0, 2) * 200 * kSlot);
        num_old += now_ms - time_ms > kNumSlots * kSlot ? 1 : 0;
        const auto end = Pick(0, 1) == 0 ? EvictionQueue::End::kFirst : EvictionQueue::End::kLast;
        queue.Push(block, reuse_class, time_ms, end);
        naive.Push(block, reuse_class, time_ms, end);
      }
      RC_ASSERT(queue.size() == static_cast<int32_t>(naive.size()));
      for (int32_t k = 0; k < kNumBlocks; ++k) RC_ASSERT(queue.Contains(k) == naive.Contains(k));
    }
  }));
  EXPECT_GT(num_popped, 100);
  EXPECT_GT(num_removed, 100);
  EXPECT_GT(num_old, 100);
}

}  // namespace
}  // namespace quire::engine
