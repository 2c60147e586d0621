#include "engine/kv/prefix_cache.h"

#include <cstdint>
#include <numeric>
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
  cache_.List(2, root_, 0, Tokens{6});
  EXPECT_EQ(cache_.Evict(), -1) << "all are held";
  cache_.MarkUnheld(1, 10);
  cache_.MarkUnheld(2, 10);
  cache_.MarkUnheld(0, 1);
  EXPECT_EQ(cache_.Evict(), 2) << "less work to compute again";
  EXPECT_EQ(cache_.Evict(), 1) << "a leaf, though used after its parent";
  EXPECT_EQ(cache_.Evict(), 0);
  EXPECT_EQ(cache_.Evict(), -1);
  EXPECT_FALSE(cache_.IsListed(0));
  EXPECT_EQ(Find({1, 2, 3, 4}).num_whole, 0);
}

TEST_F(PrefixCacheTest, WhatIsHeldAgainStays) {
  cache_.List(0, root_, -1, Tokens{1, 2, 3, 4});
  cache_.List(1, root_, -1, Tokens{5, 6, 7, 8});
  cache_.MarkUnheld(0, 1);
  cache_.MarkUnheld(1, 2);
  cache_.MarkHeld(0);
  EXPECT_EQ(cache_.Evict(), 1);
  EXPECT_EQ(cache_.Evict(), -1);
  cache_.MarkUnheld(0, 3);
  EXPECT_EQ(cache_.Evict(), 0);
}

TEST_F(PrefixCacheTest, AWholeBlockOutlivesALittleYoungerPart) {
  const int64_t bonus = PrefixCache::kEvictionBonusSteps;
  for (const bool much_younger : {false, true}) {
    cache_.List(0, root_, -1, Tokens{1, 2, 3, 4});
    cache_.List(1, root_, -1, Tokens{5});
    cache_.MarkUnheld(0, 100);
    cache_.MarkUnheld(1, 100 + (much_younger ? bonus : bonus / 2));
    EXPECT_EQ(cache_.Evict(), much_younger ? 0 : 1);
    cache_.Evict();
  }
}

TEST(PrefixCacheBonusTest, AFarPositionIsWorthMore) {
  const auto size = static_cast<int32_t>(PrefixCache::kBonusPositions);
  PrefixCache cache(3, size);
  const RootId root = cache.roots().Acquire("root");
  Tokens tokens(size);
  std::iota(tokens.begin(), tokens.end(), 0);
  cache.List(0, root, -1, tokens);
  cache.List(1, root, 0, tokens);  // begins kBonusPositions tokens after the root
  tokens[0] = -1;
  cache.List(2, root, -1, tokens);
  cache.MarkUnheld(1, 10);
  cache.MarkUnheld(2, 10 + PrefixCache::kEvictionBonusSteps - 1);
  EXPECT_EQ(cache.Evict(), 2);
  EXPECT_EQ(cache.Evict(), 1);
}

TEST(PrefixCacheBonusTest, ABlockBehindAPrefixIsFarFromTheStart) {
  PrefixCache cache(2, 4);
  cache.roots().BeginPrefix(1);
  const RootId plain = cache.roots().Acquire("plain");
  const RootId behind = cache.roots().Acquire("behind", 1, PrefixCache::kBonusPositions);
  cache.List(0, behind, -1, Tokens{1, 2, 3, 4});
  cache.List(1, plain, -1, Tokens{1, 2, 3, 4});
  cache.MarkUnheld(0, 10);
  cache.MarkUnheld(1, 10 + PrefixCache::kEvictionBonusSteps - 1);
  EXPECT_EQ(cache.Evict(), 1);
  EXPECT_EQ(cache.Evict(), 0);
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
  EXPECT_EQ(cache.Evict(), 0);
  cache.Sweep(1);
  EXPECT_EQ(cache.Evict(), 2);
  EXPECT_EQ(cache.Evict(), 1);
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
