#include "engine/kv/reuse_classes.h"

#include <algorithm>
#include <cstdint>
#include <rapidcheck.h>
#include <vector>

#include "gtest/gtest.h"

#include "tests/testing/pick.h"

namespace quire::engine {
namespace {

using testing::Pick;

ChainHash Hash(uint64_t n) { return {.low = n * 0x9e3779b97f4a7c15u, .high = n << 8 | 1}; }

std::vector<ChainHash> Hashes(const std::vector<int>& blocks) {
  std::vector<ChainHash> hashes;
  for (const int block : blocks) hashes.push_back(Hash(block));
  return hashes;
}

int64_t NumReturns(const ReuseClasses& classes, int32_t reuse_class) {
  int64_t num = 0;
  for (int32_t k = 0; k < ReuseClasses::kNumBuckets; ++k)
    num += classes.num_returns(reuse_class, k);
  return num;
}

// A request with these whole blocks, which are not cached, starts and ends at `now_ms`.
int32_t Serve(ReuseClasses& classes, const std::vector<int>& blocks, int64_t now_ms,
              int64_t num_generated = 100) {
  const CacheUse use = classes.Begin(Hashes(blocks), 0, std::ssize(blocks), now_ms);
  return classes.End(use, {.num_generated = num_generated}, now_ms);
}

TEST(ReuseClassesTest, BucketsGrowByAFewPercent) {
  EXPECT_EQ(ReuseClasses::BucketOf(0), 0);
  EXPECT_EQ(ReuseClasses::BucketOf(999), 0);
  EXPECT_EQ(ReuseClasses::BucketOf(1000), 1);
  EXPECT_EQ(ReuseClasses::BucketOf(1149), 1);
  EXPECT_EQ(ReuseClasses::BucketOf(1150), 2);
  EXPECT_EQ(ReuseClasses::BucketOf(int64_t{1} << 40), ReuseClasses::kNumBuckets - 1);
}

TEST(ReuseClassesTest, HotClassesDoubleTheirUses) {
  EXPECT_EQ(ReuseClasses::HotClass(5), ReuseClasses::kFirstHot);
  EXPECT_EQ(ReuseClasses::HotClass(9), ReuseClasses::kFirstHot);
  EXPECT_EQ(ReuseClasses::HotClass(10), ReuseClasses::kFirstHot + 1);
  EXPECT_EQ(ReuseClasses::HotClass(255), ReuseClasses::kFirstHot + 5);
}

TEST(ReuseClassesTest, AReturnCountsForTheClassOfTheEarlierRequest) {
  ReuseClasses classes(16);
  const int32_t first = Serve(classes, {1, 2}, 0);
  EXPECT_EQ(first, ReuseClasses::ClassOf(0, 0, false));
  const int32_t second = Serve(classes, {1, 2, 3}, 60'000, 2);
  EXPECT_EQ(second, ReuseClasses::ClassOf(1, 2, true));
  EXPECT_EQ(classes.num_returns(first, ReuseClasses::BucketOf(60'000)), 1);
  EXPECT_EQ(NumReturns(classes, first), 1);
  EXPECT_EQ(NumReturns(classes, second), 0);
  EXPECT_EQ(classes.num_awaited(first, ReuseClasses::BucketOf(60'000)), 1);
  EXPECT_EQ(classes.num_awaited(first, ReuseClasses::BucketOf(60'000) + 1), 0);
}

TEST(ReuseClassesTest, ARequestThatStartsAgainIsCountedOnce) {
  ReuseClasses classes(16);
  const int32_t first = Serve(classes, {1, 2}, 0);
  for (int i = 0; i < 3; ++i) {
    const CacheUse use = classes.Begin(Hashes({1, 2, 3}), 0, 3, 1000);
    EXPECT_EQ(use.turn, 1);
  }
  EXPECT_EQ(NumReturns(classes, first), 1);
}

TEST(ReuseClassesTest, AnAnswerIsShortBelowTheBound) {
  ReuseClasses classes(16);
  EXPECT_EQ(Serve(classes, {1}, 0, ReuseClasses::kShortAnswer - 1) % 2, 1);
  EXPECT_EQ(Serve(classes, {2}, 0, ReuseClasses::kShortAnswer) % 2, 0);
}

TEST(ReuseClassesTest, SharesAreOfThePrompt) {
  ReuseClasses classes(16);
  EXPECT_EQ(classes.Begin({}, 0, 0, 0).share, 0);
  EXPECT_EQ(classes.Begin({}, 1, 8, 0).share, 0);
  EXPECT_EQ(classes.Begin({}, 2, 15, 0).share, 1);
  EXPECT_EQ(classes.Begin({}, 7, 15, 0).share, 1);
  EXPECT_EQ(classes.Begin({}, 8, 16, 0).share, 2);
}

TEST(ReuseClassesTest, ForksAndPreemptedRequestsLeaveNoGhost) {
  ReuseClasses classes(16);
  CacheUse use = classes.Begin(Hashes({1, 2}), 0, 2, 0);
  EXPECT_EQ(classes.End(use, {.comes_back = true}, 0), ReuseClasses::kComingBack);
  use.is_first = false;
  EXPECT_LT(classes.End(use, {}, 0), ReuseClasses::kFirstHot);
  EXPECT_EQ(classes.Begin(Hashes({1, 2}), 0, 2, 1000).turn, 0);
}

TEST(ReuseClassesTest, APromptContinuesAnotherThoughItsEndWasReplaced) {
  for (const int num_replaced : {2, 3}) {
    ReuseClasses classes(16);
    Serve(classes, {1, 2, 3, 4, 5, 6, 7, 8}, 0);
    std::vector<int> blocks = {1, 2, 3, 4, 5, 6, 7, 8};
    for (int i = 0; i < num_replaced; ++i) blocks[7 - i] = 100 + i;
    const CacheUse use = classes.Begin(Hashes(blocks), 0, 16, 1000);
    EXPECT_EQ(use.turn, num_replaced == 2 ? 1 : 0);
    EXPECT_EQ(use.share, num_replaced == 2 ? 2 : 0) << "the ghost tells the length of its prompt";
  }
}

TEST(ReuseClassesTest, ManyGhostsReplaceTheOldest) {
  ReuseClasses classes(16);  // 64 ghosts
  Serve(classes, {1}, 0);
  for (int i = 0; i < 63; ++i) Serve(classes, {100 + i}, 0);
  EXPECT_EQ(classes.Begin(Hashes({1}), 0, 1, 0).turn, 1);
  Serve(classes, {200}, 0);
  EXPECT_EQ(classes.Begin(Hashes({1}), 0, 1, 0).turn, 0);
  EXPECT_EQ(classes.Begin(Hashes({100}), 0, 1, 0).turn, 1);
}

TEST(ReuseClassesTest, RanksFallWithAgeUntilSomethingIsKnown) {
  const ReuseClasses classes(16);
  const EvictionQueue::Ranks& ranks = classes.ranks()[0];
  EXPECT_TRUE(std::ranges::is_sorted(ranks, std::greater<>()));
  EXPECT_GT(ranks.front(), ranks.back());
  for (int32_t c = 1; c < ReuseClasses::kComingBack; ++c) EXPECT_EQ(classes.ranks()[c], ranks);
}

// Requests of one class return after two minutes, those of another one never do.
TEST(ReuseClassesTest, WhatIsSoonDueOutranksWhatIsNew) {
  ReuseClasses classes(64);
  for (int i = 0; i < 400; ++i) {
    const int64_t now_ms = i * 5000;
    Serve(classes, {10'000 + i}, now_ms, 100);
    Serve(classes, {20'000 + i}, now_ms, 1);
    if (i >= 24) Serve(classes, {10'000 + i - 24, 30'000 + i}, now_ms);
  }
  const EvictionQueue::Ranks& returns = classes.ranks()[ReuseClasses::ClassOf(0, 0, false)];
  const EvictionQueue::Ranks& never = classes.ranks()[ReuseClasses::ClassOf(0, 0, true)];
  const int64_t due = 110'000 / EvictionQueue::kSlotMs;
  EXPECT_GT(returns[due], 3 * returns[0]);
  EXPECT_GT(returns[due], 10 * returns[due + 8]);
  EXPECT_GT(returns[0], 10 * never[0]);
}

TEST(ReuseClassesTest, RemembersUses) {
  ReuseClasses classes(16);
  EXPECT_EQ(classes.UsesOf(Hash(1)), 0);
  classes.RememberUses(Hash(1), 255);
  EXPECT_EQ(classes.UsesOf(Hash(1)), 255);
  ChainHash collides = Hash(1);
  collides.high ^= 1;
  EXPECT_EQ(classes.UsesOf(collides), 0);
}

// Counts by a search of all requests so far.
class NaiveClasses {
 public:
  struct Past {
    int block = 0;
    int64_t time_ms = 0;
    int32_t reuse_class = 0;
    int32_t turn = 0;
    int64_t returned_ms = -1;
  };
  // Returns the turn.
  int32_t Begin(const std::vector<int>& blocks, int64_t now_ms) {
    for (size_t i = blocks.size(); i-- > 0;) {
      const auto past = std::find_if(past_.rbegin(), past_.rend(),
                                     [&](const Past& p) { return p.block == blocks[i]; });
      if (past == past_.rend()) continue;
      if (past->returned_ms < 0) past->returned_ms = now_ms;
      return past->turn + 1;
    }
    return 0;
  }
  void End(int block, int32_t turn, int32_t reuse_class, int64_t now_ms) {
    past_.push_back({.block = block, .time_ms = now_ms, .reuse_class = reuse_class, .turn = turn});
  }
  int64_t NumReturns(int32_t reuse_class, int32_t bucket) const {
    return std::ranges::count_if(past_, [&](const Past& p) {
      return p.reuse_class == reuse_class && p.returned_ms >= 0 &&
             ReuseClasses::BucketOf(p.returned_ms - p.time_ms) == bucket;
    });
  }
  int64_t NumAwaited(int32_t reuse_class, int32_t bucket, int64_t now_ms) const {
    return std::ranges::count_if(past_, [&](const Past& p) {
      const int64_t age_ms = (p.returned_ms >= 0 ? p.returned_ms : now_ms) - p.time_ms;
      return p.reuse_class == reuse_class && ReuseClasses::BucketOf(age_ms) >= bucket;
    });
  }

 private:
  std::vector<Past> past_;
};

TEST(ReuseClassesPropertyTest, CountsAreThoseOfASearch) {
  int64_t num_returns = 0;
  EXPECT_TRUE(rc::check([&] {
    ReuseClasses classes(16);
    NaiveClasses naive;
    int64_t now_ms = 0;
    for (int i = Pick(0, 60); i > 0; --i) {  // at most 64, so that no ghost is forgotten
      now_ms += Pick(0, 40) * 1000;
      std::vector<int> blocks(Pick(0, 3));
      for (size_t k = 0; k < blocks.size(); ++k) blocks[k] = static_cast<int>(k) * 10 + Pick(0, 3);
      const CacheUse use = classes.Begin(Hashes(blocks), 0, std::ssize(blocks), now_ms);
      RC_ASSERT(use.turn == naive.Begin(blocks, now_ms));
      const int32_t reuse_class = classes.End(use, {.num_generated = Pick(20, 40)}, now_ms);
      if (!blocks.empty()) naive.End(blocks.back(), use.turn, reuse_class, now_ms);
    }
    classes.Begin({}, 0, 0, now_ms);
    for (int32_t c = 0; c < ReuseClasses::kFirstHot; ++c) {
      for (int32_t k = 0; k < ReuseClasses::kNumBuckets; ++k) {
        RC_ASSERT(classes.num_returns(c, k) == naive.NumReturns(c, k));
        RC_ASSERT(classes.num_awaited(c, k) == naive.NumAwaited(c, k, now_ms));
        num_returns += classes.num_returns(c, k);
      }
    }
  }));
  EXPECT_GT(num_returns, 100);
}

}  // namespace
}  // namespace quire::engine
