#include "engine/kv/block_manager.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

std::vector<int32_t> Iota(int32_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Compute, Grow and EmptyStep each run one whole step, from BeginStep to CompleteStep.
class BlockManagerTest : public ::testing::Test {
 protected:
  // Starts a sequence, computes all of `tokens` and commits them. Returns the number of cached
  // tokens.
  int64_t Compute(SequenceId id, const std::vector<int32_t>& tokens, std::string_view root = "r",
                  CacheAccess access = {}) {
    blocks_.BeginStep(++step_);
    const auto start = blocks_.StartSequence(id, root, tokens, access);
    EXPECT_TRUE(blocks_.TryGrow(id, static_cast<int64_t>(tokens.size())));
    EndAndComplete();
    blocks_.Commit(id, tokens, static_cast<int64_t>(tokens.size()));
    blocks_.CheckInvariants();
    return start.num_cached;
  }
  bool Grow(SequenceId id, int64_t num_tokens) {
    blocks_.BeginStep(++step_);
    const bool grown = blocks_.TryGrow(id, num_tokens);
    EndAndComplete();
    return grown;
  }
  void EmptyStep() {
    blocks_.BeginStep(++step_);
    EndAndComplete();
  }
  void EndAndComplete() {
    copies_.clear();
    shifts_.clear();
    blocks_.EndStep(true, &copies_, &shifts_);
    blocks_.CompleteStep(step_);
    blocks_.CheckInvariants();
  }

  BlockManager blocks_{{.num_blocks = 16, .block_size = 4}};
  std::vector<kernels::BlockCopy> copies_;
  std::vector<kernels::KeyShift> shifts_;
  int64_t step_ = 0;
};

TEST_F(BlockManagerTest, ReusesToTheTokenButTheLast) {
  EXPECT_EQ(Compute(1, Iota(10)), 0);
  EXPECT_EQ(Compute(2, Iota(10)), 9);
  EXPECT_EQ(blocks_.stats().num_partial_hits, 1);
  EXPECT_EQ(copies_.size(), 1u);
  EXPECT_EQ(copies_[0].source, blocks_.Table(1)[2]);
  EXPECT_EQ(copies_[0].destination, blocks_.Table(2)[2]);
  EXPECT_EQ(blocks_.Table(2)[0], blocks_.Table(1)[0]);
}

TEST_F(BlockManagerTest, EveryPrefixLengthIsFound) {
  Compute(1, Iota(12));
  SequenceId id = 2;
  for (int32_t n = 1; n <= 13; ++n) {
    std::vector<int32_t> tokens = Iota(n);
    tokens.push_back(99);
    EXPECT_EQ(Compute(id, tokens), std::min(n, 12)) << n;
    blocks_.Release(id++);
  }
}

TEST_F(BlockManagerTest, BlocksStayCachedAfterTheirSequence) {
  Compute(1, Iota(8));
  blocks_.Release(1);
  EXPECT_EQ(blocks_.stats().num_cached, 2);
  EXPECT_EQ(blocks_.stats().num_held, 0);
  EXPECT_EQ(Compute(2, Iota(9)), 8);
  EXPECT_EQ(blocks_.stats().num_hit_blocks, 2);
}

// The samples of one prompt share its whole blocks and no others.
TEST(MostBlocksTest, IsWhatSamplesHoldAndTheLeastThatMaxNewTokensAllows) {
  constexpr int32_t kBlockSize = 4;
  EXPECT_EQ(MostBlocks(kBlockSize, 7, 1, 1), 2);
  EXPECT_EQ(MostBlocks(kBlockSize, 7, 1, 2), 1 + 2);
  EXPECT_EQ(MostBlocks(kBlockSize, 8, 1, 3), 2 + 3);
  EXPECT_EQ(MostBlocks(kBlockSize, 3, 2, 2), 2 * 2);
  for (int32_t n = 1; n <= 3; ++n) {
    for (int64_t prompt_len = 1; prompt_len <= 13; ++prompt_len) {
      for (int64_t num_new = 1; num_new <= 9; ++num_new) {
        const int64_t most = MostBlocks(kBlockSize, prompt_len, num_new, n);
        EXPECT_GE(MaxNewTokens(most, kBlockSize, prompt_len, n), num_new) << n << " " << prompt_len;
        EXPECT_LT(MaxNewTokens(most - 1, kBlockSize, prompt_len, n), num_new)
            << n << " " << prompt_len;
      }
    }
  }
}

TEST_F(BlockManagerTest, OnlyCommittedTokensAreFound) {
  blocks_.BeginStep(++step_);
  blocks_.StartSequence(1, "r", Iota(8), {});
  EXPECT_TRUE(blocks_.TryGrow(1, 8));
  EndAndComplete();
  blocks_.Commit(1, Iota(8), 5);
  EXPECT_EQ(Compute(2, Iota(8)), 5);
}

TEST_F(BlockManagerTest, RootsAreApart) {
  Compute(1, Iota(8), CacheRootKey("m", "", "tenant", "part", "salt"));
  EXPECT_EQ(Compute(2, Iota(8), CacheRootKey("m", "", "tenantp", "art", "salt")), 0);
  EXPECT_EQ(Compute(4, Iota(8), CacheRootKey("m", "", "tenant", "parts", "alt")), 0);
  EXPECT_EQ(Compute(3, Iota(8), CacheRootKey("m", "", "tenant", "part", "salt")), 7);
}

TEST_F(BlockManagerTest, EachPartOfARootCounts) {
  const std::string roots[] = {
      CacheRootKey("m", "a", "t", "p", "s", 7), CacheRootKey("n", "a", "t", "p", "s", 7),
      CacheRootKey("m", "b", "t", "p", "s", 7), CacheRootKey("m", "a", "u", "p", "s", 7),
      CacheRootKey("m", "a", "t", "q", "s", 7), CacheRootKey("m", "a", "t", "p", "x", 7),
      CacheRootKey("m", "a", "t", "p", "s", 8), CacheRootKey("m", "a", "t", "p", "s")};
  SequenceId id = 0;
  for (const std::string& root : roots) EXPECT_EQ(Compute(++id, Iota(3), root), 0) << id;
  EXPECT_EQ(Compute(++id, Iota(3), roots[0]), 2);
}

TEST_F(BlockManagerTest, BypassReadsNothingAndWritesNothing) {
  Compute(1, Iota(8));
  EXPECT_EQ(Compute(2, Iota(8), "r", {.read = false}), 0);
  EXPECT_NE(blocks_.Table(2)[0], blocks_.Table(1)[0]);
  blocks_.Release(1);
  blocks_.Release(2);
  EXPECT_EQ(blocks_.stats().num_cached, 2);  // sequence 1's blocks; sequence 2 listed none
  Compute(3, Iota(8, 50), "r", {.write = false});
  EXPECT_EQ(Compute(4, Iota(8, 50)), 0);
}

TEST_F(BlockManagerTest, ComputedTwiceIsKeptOnce) {
  blocks_.BeginStep(++step_);
  for (const SequenceId id : {1, 2}) {
    blocks_.StartSequence(id, "r", Iota(9), {});
    EXPECT_TRUE(blocks_.TryGrow(id, 9));
  }
  EndAndComplete();
  blocks_.Commit(1, Iota(9), 9);
  blocks_.Commit(2, Iota(9), 9);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_deduplicated, 2);
  EXPECT_EQ(blocks_.Table(2)[1], blocks_.Table(1)[1]);
  EXPECT_EQ(blocks_.stats().num_held, 4);  // two shared blocks, two tails
}

TEST_F(BlockManagerTest, ATableIsPinnedIfAllOfItIsListed) {
  Compute(1, Iota(6));
  EXPECT_EQ(blocks_.TryPinTable(7, 1), 6);
  blocks_.Unpin(7);
  // Its tail is pinned while a step writes one more token into it.
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(1, 7));
  blocks_.EndStep(true, &copies_, &shifts_);
  ASSERT_TRUE(blocks_.TryPin(8, "r", Iota(6)));
  blocks_.CompleteStep(step_);
  blocks_.Commit(1, Iota(7), 7);
  EXPECT_EQ(blocks_.TryPinTable(9, 1), 0) << "the last token is listed nowhere";
  blocks_.CheckInvariants();
}

TEST_F(BlockManagerTest, EachEvictionIsCountedAndNothingElse) {
  Compute(1, Iota(64));
  blocks_.Release(1);
  Compute(2, Iota(64, 1000));
  EXPECT_EQ(blocks_.stats().num_evictions, 16);
  blocks_.BeginStep(++step_);
  EXPECT_EQ(blocks_.StartSequence(3, "r", Iota(64, 1000), {}).num_cached, 60)
      << "no block is left for a copy of the last one";
  blocks_.Release(3);
  EndAndComplete();
  EXPECT_EQ(blocks_.stats().num_evictions, 16);
}

TEST_F(BlockManagerTest, ThoseThatRunTogetherCopyOnlyWhatTheyWriteInto) {
  Compute(1, Iota(6));
  ASSERT_TRUE(blocks_.TryFork(1, 2));
  const std::vector<SequenceId> both = {1, 2};
  EXPECT_EQ(blocks_.GrowthTogether(both, 6).num_blocks, 0);
  EXPECT_EQ(blocks_.GrowthTogether(both, 7).num_copies, 1) << "the last one keeps the block";
  EXPECT_EQ(blocks_.GrowthTogether(both, 8).num_blocks, 1);
  EXPECT_EQ(blocks_.GrowthTogether(both, 9).num_blocks, 1 + 2);
}

TEST_F(BlockManagerTest, ForkSharesAllAndTheWriterCopies) {
  Compute(1, Iota(6));
  ASSERT_TRUE(blocks_.TryFork(1, 2));
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_held, 2);
  ASSERT_TRUE(Grow(1, 7));
  ASSERT_EQ(copies_.size(), 1u);
  EXPECT_EQ(copies_[0].source, blocks_.Table(2)[1]);
  EXPECT_EQ(copies_[0].destination, blocks_.Table(1)[1]);
  ASSERT_TRUE(Grow(2, 7));
  EXPECT_TRUE(copies_.empty()) << "the last holder writes in place";
}

TEST_F(BlockManagerTest, ReleasedInFlightIsQuarantined) {
  Compute(1, Iota(8));
  blocks_.BeginStep(++step_);
  EXPECT_TRUE(blocks_.TryGrow(1, 9));
  blocks_.EndStep(true, &copies_, &shifts_);
  blocks_.Release(1);
  EXPECT_EQ(blocks_.stats().num_quarantined, 3);
  EXPECT_EQ(blocks_.stats().num_held, 3);
  blocks_.CheckInvariants();
  blocks_.CompleteStep(step_);
  EXPECT_EQ(blocks_.stats().num_quarantined, 0);
  EXPECT_EQ(blocks_.stats().num_cached, 2);
  EXPECT_EQ(blocks_.stats().num_free, 14);
}

TEST_F(BlockManagerTest, AStartTakenBackLeavesNothing) {
  Compute(1, Iota(6));
  blocks_.BeginStep(++step_);
  EXPECT_EQ(blocks_.StartSequence(2, "r", Iota(6), {}).num_cached, 5);
  blocks_.Release(2);
  copies_.clear();
  blocks_.EndStep(false, &copies_, &shifts_);
  EXPECT_TRUE(copies_.empty());
  EXPECT_EQ(blocks_.stats().num_held, 2);
  blocks_.CheckInvariants();
}

TEST_F(BlockManagerTest, AShiftCopiesWhatTheCacheListsAndFreesItsOwn) {
  Compute(1, Iota(24));
  const std::vector<int32_t> before(blocks_.Table(1).begin(), blocks_.Table(1).end());
  // The shift removes the second block. One token is added.
  blocks_.BeginStep(++step_);
  EXPECT_EQ(blocks_.NumBlocksToGrow(1, 21, {.first = 4, .count = 4}), 5);
  ASSERT_TRUE(blocks_.TryGrow(1, 21, {.first = 4, .count = 4}));
  const std::vector<int32_t> shifted(blocks_.Table(1).begin(), blocks_.Table(1).end());
  EndAndComplete();
  ASSERT_EQ(shifted.size(), 6u);
  EXPECT_EQ(shifted[0], before[0]) << "the sink stays where it is";
  ASSERT_EQ(copies_.size(), 4u);
  ASSERT_EQ(shifts_.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(shifts_[i].block, shifted[1 + i]);
    EXPECT_EQ(shifts_[i].distance, 4);
    EXPECT_EQ(copies_[3 - i].source, before[2 + i]);
    EXPECT_EQ(copies_[3 - i].destination, shifted[1 + i]);
  }
  EXPECT_EQ(blocks_.stats().num_cached, 5) << "for others, as they were";
  EXPECT_EQ(blocks_.stats().num_held, 6);

  // After a shift, the sequence adds no further blocks to the prefix cache. So a further shift
  // changes the sequence's own blocks in place, without copies.
  blocks_.Commit(1, Iota(25), 21);
  EXPECT_EQ(blocks_.stats().num_cached, 5);
  ASSERT_TRUE(Grow(1, 24));
  blocks_.Commit(1, Iota(28), 24);
  blocks_.BeginStep(++step_);
  EXPECT_EQ(blocks_.NumBlocksToGrow(1, 21, {.first = 4, .count = 4}), 0);
  ASSERT_TRUE(blocks_.TryGrow(1, 21, {.first = 4, .count = 4}));
  EndAndComplete();
  EXPECT_TRUE(copies_.empty());
  EXPECT_EQ(shifts_.size(), 4u);
  EXPECT_EQ(blocks_.Table(1)[1], shifted[2]);
  EXPECT_EQ(blocks_.stats().num_held, 6);

  // Another prompt that begins with the same 24 tokens still finds all of them.
  EXPECT_EQ(Compute(2, Iota(25)), 24);
  blocks_.Release(2);
  blocks_.Release(1);
  EXPECT_EQ(blocks_.stats().num_held, 0);
}

TEST_F(BlockManagerTest, AShiftCopiesWhatASiblingHolds) {
  Compute(1, Iota(12), "r", {.read = true, .write = false});
  ASSERT_TRUE(blocks_.TryFork(1, 2));
  const TableShift shift{.first = 0, .count = 4};
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(1, 9, shift));
  ASSERT_TRUE(blocks_.TryGrow(2, 9, shift));
  EndAndComplete();
  EXPECT_EQ(copies_.size(), 2u) << "the last holder is turned in place";
  EXPECT_EQ(shifts_.size(), 4u);
  EXPECT_EQ(blocks_.stats().num_held, 6);
}

TEST_F(BlockManagerTest, AShiftIsTakenBackWithItsSequence) {
  Compute(1, Iota(12));
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(1, 9, {.first = 0, .count = 4}));
  blocks_.Release(1);
  copies_.clear();
  shifts_.clear();
  blocks_.EndStep(false, &copies_, &shifts_);
  EXPECT_TRUE(copies_.empty() && shifts_.empty());
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_cached, 3);
  EXPECT_EQ(blocks_.stats().num_free, 13);
}

TEST_F(BlockManagerTest, AShiftThatLacksBlocksChangesNothing) {
  Compute(1, Iota(32));
  Compute(2, Iota(28, 100));
  const std::vector<int32_t> before(blocks_.Table(1).begin(), blocks_.Table(1).end());
  blocks_.BeginStep(++step_);
  EXPECT_EQ(blocks_.NumBlocksToGrow(1, 25, {.first = 0, .count = 8}), 7);
  EXPECT_FALSE(blocks_.TryGrow(1, 25, {.first = 0, .count = 8}));
  EXPECT_TRUE(std::ranges::equal(blocks_.Table(1), before));
  EndAndComplete();
  EXPECT_TRUE(copies_.empty() && shifts_.empty());
}

TEST_F(BlockManagerTest, AShiftThatIsTakenBackWaitsForTheStepInFlight) {
  Compute(1, Iota(8));
  Compute(2, Iota(12));  // shares both blocks of the first, and continues them
  blocks_.BeginStep(++step_);
  blocks_.EndStep(true, &copies_, &shifts_);
  blocks_.Release(2);  // its last block is quarantined
  blocks_.BeginStep(++step_);
  EXPECT_TRUE(blocks_.TryGrow(1, 5, {.first = 0, .count = 4}));
  blocks_.Release(1);
  // The blocks before the quarantined one are still held.
  blocks_.CheckInvariants();
  EXPECT_GE(blocks_.stats().num_quarantined, 3);
  blocks_.EndStep(false, &copies_, &shifts_);
  blocks_.CompleteStep(--step_);
  EXPECT_EQ(blocks_.stats().num_held, 0);
  EXPECT_EQ(blocks_.stats().num_cached, 3);
  blocks_.CheckInvariants();
}

TEST_F(BlockManagerTest, GrowsAllOrNothing) {
  Compute(1, Iota(60));
  blocks_.BeginStep(++step_);
  blocks_.StartSequence(2, "q", Iota(4), {});
  EXPECT_TRUE(blocks_.TryGrow(2, 4));
  EXPECT_FALSE(blocks_.TryGrow(2, 5));
  EXPECT_EQ(blocks_.Table(2).size(), 1u);
  EndAndComplete();
}

TEST_F(BlockManagerTest, EvictsTheLeavesOfTheLeastRecentlyUsed) {
  Compute(1, Iota(24));
  blocks_.Release(1);
  for (int i = 0; i < 100; ++i) EmptyStep();
  Compute(2, Iota(24, 100));
  blocks_.Release(2);
  EXPECT_EQ(blocks_.stats().num_cached, 12);
  Compute(3, Iota(32, 200));  // needs 8 blocks: 4 are free, 4 are evicted
  EXPECT_EQ(blocks_.stats().num_evictions, 4);
  blocks_.Release(3);
  EXPECT_EQ(Compute(4, Iota(9)), 8) << "its first blocks outlived its last";
  blocks_.Release(4);
}

TEST_F(BlockManagerTest, FitsEmptyCountsTheSharedPromptOnce) {
  EXPECT_TRUE(blocks_.FitsEmpty(60, 4));
  EXPECT_FALSE(blocks_.FitsEmpty(60, 5));
  EXPECT_TRUE(blocks_.FitsEmpty(32, 8, 4));
  EXPECT_FALSE(blocks_.FitsEmpty(32, 9, 4));
  EXPECT_FALSE(blocks_.FitsEmpty(33, 8, 4));
}

}  // namespace
}  // namespace quire::engine
