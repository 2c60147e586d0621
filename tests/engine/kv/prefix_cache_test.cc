#include "engine/kv/prefix_cache.h"

#include <cstdint>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Tokens = std::vector<int32_t>;

// Tests a cache with blocks of 4 tokens. Each test begins with `root_` acquired.
class PrefixCacheTest : public ::testing::Test {
 protected:
  static constexpr int32_t kNumBlocks = 8;
  static constexpr int64_t kLater = EvictionQueue::kSlotMs;

  PrefixCache::Match Find(const Tokens& tokens, RootId root) {
    whole_.clear();
    return cache_.Find(root, tokens, &whole_);
  }
  PrefixCache::Match Find(const Tokens& tokens) { return Find(tokens, root_); }

  PrefixCache cache_{kNumBlocks, /*block_size=*/4, /*max_compared=*/2};
  const RootId root_ = cache_.roots().Acquire("root");
  Tokens whole_;  // the whole blocks that the last Find found
};

TEST_F(PrefixCacheTest, FindsWholeBlocksAndThenAPart) {
  cache_.List(5, root_, -1, Tokens{1, 2, 3, 4});
  cache_.List(0, root_, 5, Tokens{5, 6, 7, 8});
  cache_.List(3, root_, 0, Tokens{9, 10});
  const PrefixCache::Match match = Find({1, 2, 3, 4, 5, 6, 7, 8, 9, 11});
  EXPECT_THAT(whole_, ElementsAre(5, 0));
  EXPECT_EQ(match.num_whole, 2);
  EXPECT_EQ(match.partial_block, 3);
  EXPECT_EQ(match.partial_tokens, 1);
}

TEST_F(PrefixCacheTest, AWholeBlockMatchesInPartToo) {
  cache_.List(5, root_, -1, Tokens{1, 2, 3, 4});
  for (const Tokens& tokens : {Tokens{1, 2, 3}, Tokens{1, 2, 3, 9, 4}}) {
    const PrefixCache::Match match = Find(tokens);
    EXPECT_THAT(whole_, IsEmpty());
    EXPECT_EQ(match.partial_block, 5);
    EXPECT_EQ(match.partial_tokens, 3);
  }
  EXPECT_EQ(Find({2, 2, 3, 4}).partial_block, -1);
  EXPECT_EQ(Find({}).partial_block, -1);
}

TEST_F(PrefixCacheTest, ANodeGrowsUntilItIsWhole) {
  cache_.List(1, root_, -1, Tokens{1, 2});
  cache_.Append(1, Tokens{3});
  EXPECT_EQ(Find({1, 2, 3, 4}).partial_tokens, 3);
  EXPECT_EQ(cache_.FindWhole(root_, -1, Tokens{1, 2, 3, 4}), -1);
  cache_.Append(1, Tokens{4});
  EXPECT_THAT(cache_.Tokens(1), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(cache_.FindWhole(root_, -1, Tokens{1, 2, 3, 4}), 1);
  EXPECT_EQ(Find({1, 2, 3, 4}).num_whole, 1);
}

TEST_F(PrefixCacheTest, TheSameTokensElsewhereAreOthers) {
  const RootId other = cache_.roots().Acquire("other");
  cache_.List(0, root_, -1, Tokens{1, 2, 3, 4});
  cache_.List(1, root_, 0, Tokens{1, 2, 3, 4});
  EXPECT_EQ(cache_.FindWhole(root_, 0, Tokens{1, 2, 3, 4}), 1);
  EXPECT_EQ(cache_.FindWhole(root_, 1, Tokens{1, 2, 3, 4}), -1);
  EXPECT_EQ(cache_.FindWhole(other, -1, Tokens{1, 2, 3, 4}), -1);
  const PrefixCache::Match match = Find({1, 2, 3, 4}, other);
  EXPECT_EQ(match.num_whole, 0);
  EXPECT_EQ(match.partial_block, -1);
}

TEST_F(PrefixCacheTest, WhatStandsInAReusedBlockIsNotTheOldParent) {
  cache_.List(0, root_, -1, Tokens{1, 2, 3, 4});
  cache_.List(1, root_, 0, Tokens{5, 6, 7, 8});
  cache_.Unlist(1);
  cache_.Unlist(0);
  cache_.List(0, root_, -1, Tokens{9, 9, 9, 9});
  EXPECT_EQ(cache_.FindWhole(root_, 0, Tokens{5, 6, 7, 8}), -1);
  EXPECT_EQ(Find({9, 9, 9, 9, 5, 6, 7, 8}).num_whole, 1);
  EXPECT_EQ(Find({1, 2, 3, 4}).partial_block, -1);
}

TEST_F(PrefixCacheTest, ComparesTheLastUsedOnly) {
  cache_.List(0, root_, -1, Tokens{1, 2, 3});
  cache_.List(1, root_, -1, Tokens{1, 2});
  EXPECT_EQ(Find({1, 2, 3}).partial_block, 0);  // block 0 is now used after block 1
  cache_.List(2, root_, -1, Tokens{1});
  EXPECT_EQ(Find({1, 2, 3}).partial_block, 0);
  cache_.List(3, root_, -1, Tokens{1});
  cache_.List(4, root_, -1, Tokens{1});
  EXPECT_EQ(Find({1, 2, 3}).partial_tokens, 1) << "0 was used before both others";
}

TEST_F(PrefixCacheTest, LeavesGoFirstAndThenTheirParents) {
  cache_.List(0, root_, -1, Tokens{1, 2, 3, 4});
  cache_.List(1, root_, 0, Tokens{5, 6, 7, 8});
  cache_.List(2, root_, 0, Tokens{6, 6, 7, 8});
  EXPECT_EQ(cache_.Evict(0), -1) << "all are held";
  cache_.MarkUnheld(2, kLater);
  cache_.MarkUnheld(1, 2 * kLater);
  cache_.MarkUnheld(0, 2 * kLater);
  EXPECT_EQ(cache_.Evict(3 * kLater), 2) << "used before the other";
  EXPECT_EQ(cache_.Evict(3 * kLater), 1) << "a leaf";
  EXPECT_EQ(cache_.Evict(3 * kLater), 0);
  EXPECT_EQ(cache_.Evict(3 * kLater), -1);
  EXPECT_FALSE(cache_.IsListed(0));
  EXPECT_EQ(Find({1, 2, 3, 4}).num_whole, 0);
}

TEST_F(PrefixCacheTest, APathIsEvictedToItsBeginningBeforeTheNextOne) {
  for (const int32_t first : {0, 2}) {
    cache_.List(first, root_, -1, Tokens{first, 2, 3, 4});
    cache_.List(first + 1, root_, first, Tokens{5, 6, 7, 8});
    cache_.MarkUnheld(first + 1, 0);
    cache_.MarkUnheld(first, 0);
  }
  for (const int32_t block : {1, 0, 3, 2}) EXPECT_EQ(cache_.Evict(0), block);
}

TEST_F(PrefixCacheTest, WhatIsHeldAgainStays) {
  cache_.List(0, root_, -1, Tokens{1, 2, 3, 4});
  cache_.List(1, root_, -1, Tokens{5, 6, 7, 8});
  cache_.MarkUnheld(0, 1);
  cache_.MarkUnheld(1, 2);
  cache_.MarkHeld(0, 3);
  EXPECT_EQ(cache_.Evict(3), 1);
  EXPECT_EQ(cache_.Evict(3), -1);
  cache_.MarkUnheld(0, 4);
  EXPECT_EQ(cache_.Evict(4), 0);
}

// Requests use the cache in the order of the calls of Use.
class PrefixCacheUseTest : public PrefixCacheTest {
 protected:
  // A request with this prompt, whose whole blocks are `blocks`, runs and ends at `now_ms`.
  CacheUse Use(const Tokens& prompt, const Tokens& blocks, int64_t now_ms,
               const CacheUseEnd& end = {}) {
    Find(prompt);
    const auto num_known = static_cast<int32_t>(whole_.size());
    const CacheUse use = cache_.BeginUse(root_, prompt, whole_, now_ms);
    for (int32_t i = 0; i < num_known; ++i) cache_.MarkHeld(blocks[i], now_ms);
    for (int32_t i = num_known; i < std::ssize(blocks); ++i) {
      cache_.List(blocks[i], root_, i == 0 ? -1 : blocks[i - 1],
                  std::span(prompt).subspan(4 * i, 4));
    }
    cache_.EndUse(use, end, blocks, now_ms);
    for (auto i = blocks.size(); i-- > 0;) cache_.MarkUnheld(blocks[i], now_ms);
    return use;
  }
};

TEST_F(PrefixCacheUseTest, ARequestContinuesAnEarlierOne) {
  const CacheUse first = Use({1, 2, 3, 4, 5}, {0}, 0);
  EXPECT_EQ(first.turn, 0);
  EXPECT_EQ(first.share, 0);
  EXPECT_TRUE(first.has_key);
  const CacheUse second = Use({1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9}, {0, 1, 2}, 1000);
  EXPECT_EQ(second.turn, 1);
  EXPECT_EQ(second.share, 1) << "one block of three";
  EXPECT_FALSE(Use({1, 2}, {}, 1000).has_key);
}

TEST_F(PrefixCacheUseTest, AContinuationIsKnownThoughAllBlocksWereEvicted) {
  Use({1, 2, 3, 4, 5, 6, 7, 8}, {0, 1}, 0);
  while (cache_.Evict(1) >= 0) continue;
  const CacheUse use = Use({1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 1}, 1000);
  EXPECT_EQ(use.turn, 1);
  EXPECT_EQ(use.share, 2);
}

TEST_F(PrefixCacheUseTest, APreemptedRequestsBlocksAreEvictedLastForAWhile) {
  for (const bool soon : {true, false}) {
    Use({1, 2, 3, 4}, {0}, 0, {.comes_back = true});
    Use({5, 6, 7, 8}, {1}, kLater / 2);
    const int64_t now_ms = soon ? kLater : ReuseClasses::kComingBackSlots * kLater;
    EXPECT_EQ(cache_.Evict(now_ms), soon ? 1 : 0);
    EXPECT_EQ(cache_.Evict(now_ms), soon ? 0 : 1);
  }
}

TEST_F(PrefixCacheUseTest, ABlockThatManyUsedIsHotAgainAfterItsEviction) {
  const Tokens prompt = {1, 2, 3, 4, 5};
  for (int32_t i = 0; i < ReuseClasses::kHotUses; ++i) Use(prompt, {0}, i);
  EXPECT_EQ(cache_.reuse_class(0), ReuseClasses::kFirstHot);
  EXPECT_EQ(cache_.Evict(10), 0);
  Use(prompt, {3}, 11);
  EXPECT_EQ(cache_.reuse_class(3), ReuseClasses::kFirstHot);
  EXPECT_EQ(cache_.Evict(12), 3);
}

TEST_F(PrefixCacheUseTest, UsesOfPreemptedRequestsAreNotCounted) {
  const Tokens prompt = {1, 2, 3, 4, 5};
  for (int32_t i = 0; i < 2 * ReuseClasses::kHotUses; ++i) {
    Use(prompt, {0}, i, {.comes_back = true});
  }
  Use(prompt, {0}, 20);
  EXPECT_LT(cache_.reuse_class(0), ReuseClasses::kFirstHot);
}

TEST_F(PrefixCacheUseTest, ABlockThatIsNotFullHasAClassOfItsOwn) {
  cache_.List(0, root_, -1, Tokens{1, 2});
  cache_.MarkUnheld(0, 0);
  EXPECT_EQ(cache_.reuse_class(0), ReuseClasses::kPartial);
}

TEST(PrefixCacheRecencyTest, KnowsNoClasses) {
  PrefixCache cache(2, 1, PrefixCache::kMaxCompared, EvictionPolicy::kRecency);
  const RootId root = cache.roots().Acquire("root");
  for (int32_t i = 0; i < 2; ++i) {
    const CacheUse use = cache.BeginUse(root, Tokens{i}, {}, 0);
    EXPECT_FALSE(use.has_key);
    cache.List(i, root, -1, Tokens{i});
    cache.EndUse(use, {.comes_back = i == 0}, Tokens{i}, 0);
    cache.MarkUnheld(i, 2 * i * EvictionQueue::kSlotMs);
  }
  EXPECT_EQ(cache.Evict(3 * EvictionQueue::kSlotMs), 0);
}

TEST(PrefixCacheSweepTest, LooksAtABoundedNumberOfBlocks) {
  PrefixCache cache(4, 1);
  cache.roots().BeginPrefix(1);
  const RootId plain = cache.roots().Acquire("plain");
  const RootId behind = cache.roots().Acquire("behind", 1);
  for (const int32_t block : {0, 1, 2, 3}) {
    cache.List(block, block < 2 ? plain : behind, -1, Tokens{block});
    cache.MarkUnheld(block, block);
  }
  cache.EndPrefix(1);
  cache.Sweep(2);  // blocks 0 and 1
  EXPECT_EQ(cache.Evict(4), 0);
  cache.Sweep(1);
  EXPECT_EQ(cache.Evict(4), 2);
  EXPECT_EQ(cache.Evict(4), 1);
}

TEST_F(PrefixCacheTest, NodesKeepTheirRoot) {
  cache_.List(0, root_, -1, Tokens{1, 2, 3, 4});
  cache_.List(1, root_, 0, Tokens{5});
  cache_.roots().Release(root_);
  EXPECT_EQ(cache_.roots().size(), 1);
  EXPECT_EQ(cache_.roots().Acquire("root"), root_);
  EXPECT_EQ(Find({1, 2, 3, 4, 5}).partial_block, 1);
  cache_.roots().Release(root_);
  cache_.Unlist(1);
  EXPECT_EQ(cache_.roots().size(), 1);
  cache_.Unlist(0);
  EXPECT_EQ(cache_.roots().size(), 0);
}

}  // namespace
}  // namespace quire::engine
