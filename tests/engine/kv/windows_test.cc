// Tests KV groups with a window: which blocks a sequence holds, which blocks it releases, and from
// which prefixes a new sequence can continue. See tests/engine/scheduler/scheduler_property_test.cc
// for tests with random sequences.

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "engine/kv/block_manager.h"
#include "engine/kv/window_blocks.h"
#include "kernels/ops/attention_pattern.h"

namespace quire::engine {
namespace {

constexpr int32_t kBlockSize = 4;
constexpr auto kWindow = kernels::AttentionPattern::Window(6);

class WindowsTest : public ::testing::Test {
 protected:
  static constexpr BlockManagerConfig kLimits = {
      .num_blocks = 40, .block_size = kBlockSize, .max_step_tokens = 8};

  static BlockManagerConfig Config(int64_t num_sequences,
                                   const kernels::AttentionPattern& pattern = kWindow) {
    BlockManagerConfig config = kLimits;
    config.windows = {{.pattern = pattern,
                       .num_blocks = static_cast<int32_t>(
                           num_sequences * WindowBlocksPerSequence(pattern, kLimits))}};
    return config;
  }
  static std::vector<int32_t> Iota(int32_t n, int32_t first = 0) {
    std::vector<int32_t> tokens(n);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }

  // Computes `tokens` in steps of at most max_step_tokens. Returns the number of cached tokens, or
  // -1 when there were not enough blocks.
  int64_t Compute(BlockManager& blocks, SequenceId id, const std::vector<int32_t>& tokens,
                  const CacheAccess& access = {}) {
    const auto size = static_cast<int64_t>(tokens.size());
    blocks.BeginStep(++step_);
    const int64_t cached = blocks.StartSequence(id, "r", tokens, access).num_cached;
    const bool grown = blocks.TryGrow(id, size);
    if (!grown) blocks.Release(id);
    for (int64_t done = cached; grown && done < size;) {
      if (done > cached) blocks.BeginStep(++step_);
      done = std::min(done + kLimits.max_step_tokens, size);
      blocks.PrepareWrite(id, done);
      std::vector<kernels::BlockCopy> copies;
      std::vector<kernels::KeyShift> shifts;
      blocks.EndStep(true, &copies, &shifts);
      blocks.CompleteStep(step_);
      blocks.Commit(id, tokens, done);
      blocks.CheckInvariants();
    }
    if (!grown) {
      std::vector<kernels::BlockCopy> copies;
      std::vector<kernels::KeyShift> shifts;
      blocks.EndStep(true, &copies, &shifts);
      blocks.CompleteStep(step_);
    }
    return grown ? cached : -1;
  }

  int64_t step_ = 0;
};

TEST(WindowBlocksTest, APartWithoutAnOwnerIsFreedByItsLastHolder) {
  WindowBlocks parts(2, 4);
  ASSERT_TRUE(parts.TryReserve(2));
  EXPECT_FALSE(parts.TryReserve(1));
  for (const int num_holders : {1, 2}) {
    parts.Attach(3);
    const int32_t part = parts.Find(3);
    for (int i = 1; i < num_holders; ++i) parts.Hold(part);
    parts.Detach(3);
    EXPECT_EQ(parts.Find(3), -1);
    for (int i = 0; i < num_holders; ++i) {
      EXPECT_EQ(parts.num_held(), 1);
      parts.Drop(part);
    }
    EXPECT_EQ(parts.num_free(), 2);
    EXPECT_EQ(parts.num_spare(), 0);
    parts.CheckInvariants();
  }
}

TEST_F(WindowsTest, ASequenceHoldsOnlyWhatItsNextQueryReachesBackTo) {
  BlockManager blocks(Config(4));
  Compute(blocks, 1, Iota(30));
  // The query at position 30 sees positions 25 .. 30.
  EXPECT_EQ(blocks.RunIn(1, 1).begin, 25 / kBlockSize);
  EXPECT_EQ(blocks.RunIn(1, 1).end, 8);
  EXPECT_EQ(blocks.window_stats(1).num_held, 2);
  EXPECT_EQ(blocks.window_stats(1).num_spare, 6);
  EXPECT_EQ(blocks.stats().num_held, 8);
  blocks.Release(1);
  EXPECT_EQ(blocks.window_stats(1).num_held, 0);
}

TEST_F(WindowsTest, ASequenceGrowsToWhatItReservedAndNoFurther) {
  BlockManager blocks(Config(2));
  std::vector<kernels::BlockCopy> copies;
  std::vector<kernels::KeyShift> shifts;
  blocks.BeginStep(1);
  for (const SequenceId id : {1, 2, 3}) {
    const auto tokens = Iota(id == 1 ? 30 : 1, 1000 * static_cast<int32_t>(id));
    blocks.StartSequence(id, "r", tokens, {});
    ASSERT_TRUE(blocks.TryGrow(id, std::ssize(tokens)));
    EXPECT_TRUE(blocks.Covers(id, std::ssize(tokens)));
    EXPECT_FALSE(blocks.Covers(id, std::ssize(tokens) + 1))
        << "its block has room, its window none";
    blocks.PrepareWrite(id, std::min<int64_t>(std::ssize(tokens), kLimits.max_step_tokens));
  }
  blocks.EndStep(true, &copies, &shifts);
  // The window has ten places: five for the first sequence, and two for each of the others.
  EXPECT_TRUE(blocks.CanGrow(2, 8)) << "one place more, the last one";
  EXPECT_FALSE(blocks.CanGrow(2, 9));
  EXPECT_FALSE(blocks.CouldGrowLater(2, 30));
  EXPECT_FALSE(blocks.AnyQuarantined());
  blocks.Release(3);
  EXPECT_TRUE(blocks.AnyQuarantined());
  EXPECT_FALSE(blocks.CanGrow(2, 30));
  EXPECT_TRUE(blocks.CouldGrowLater(2, 30)) << "with the places of the third, to the last one";
  blocks.CompleteStep(1);
  EXPECT_FALSE(blocks.AnyQuarantined());
  EXPECT_TRUE(blocks.CanGrow(2, 30));
}

TEST_F(WindowsTest, SparePartsAreContinuedFromUntilTheirSpaceIsNeeded) {
  BlockManager blocks(Config(2));
  Compute(blocks, 1, Iota(30));
  blocks.Release(1);
  EXPECT_EQ(Compute(blocks, 2, Iota(30)), 29);
  blocks.Release(2);
  EXPECT_EQ(Compute(blocks, 3, Iota(13)), 12) << "from the middle";
  blocks.Release(3);

  Compute(blocks, 4, Iota(60, 1000));
  EXPECT_GT(blocks.window_stats(1).num_taken_away, 0);
  blocks.Release(4);
  // KV group 0 still has the blocks of all 30 tokens.
  EXPECT_EQ(blocks.stats().num_evictions, 0);
  EXPECT_EQ(Compute(blocks, 5, Iota(30)), 0);
  EXPECT_EQ(blocks.stats().num_deduplicated, 7) << "whole blocks that group 0 had";
  blocks.Release(5);
  EXPECT_EQ(Compute(blocks, 6, Iota(30)), 29) << "the parts computed again went to them";
}

TEST_F(WindowsTest, AHitIsTheLongestThatEveryWindowCanContinue) {
  BlockManager blocks(Config(2));
  Compute(blocks, 1, Iota(30));
  blocks.Release(1);
  // Sequence 2 takes the window blocks that sequence 1 released earliest. They held the first
  // tokens of sequence 1.
  Compute(blocks, 2, Iota(26, 1000));
  EXPECT_GT(blocks.window_stats(1).num_taken_away, 0);
  blocks.Release(2);
  EXPECT_EQ(Compute(blocks, 3, Iota(30)), 29) << "the last window's are there";
  blocks.Release(3);
  EXPECT_EQ(Compute(blocks, 4, Iota(8)), 0) << "its own parts are gone";
}

TEST_F(WindowsTest, AChunkIsHeldUntilItEnds) {
  BlockManager blocks(Config(4, kernels::AttentionPattern::Chunk(8)));
  Compute(blocks, 1, Iota(30));
  // The query at position 30 sees positions 24 .. 30.
  EXPECT_EQ(blocks.RunIn(1, 1).begin, 24 / kBlockSize);
  EXPECT_EQ(blocks.RunIn(1, 1).end, 8);
  Compute(blocks, 2, Iota(32, 1000));
  EXPECT_EQ(blocks.RunIn(1, 2).begin, blocks.RunIn(1, 2).end) << "the next query sees only itself";
  EXPECT_EQ(blocks.window_stats(1).num_held, 2);
  EXPECT_EQ(blocks.stats().num_held, 16);
}

TEST_F(WindowsTest, AHitThatEndsWithAChunkNeedsNoPart) {
  BlockManager blocks(Config(2, kernels::AttentionPattern::Chunk(8)));
  Compute(blocks, 1, Iota(40));
  blocks.Release(1);
  const int64_t taken_away = blocks.window_stats(1).num_taken_away;
  Compute(blocks, 2, Iota(60, 1000));
  EXPECT_GT(blocks.window_stats(1).num_taken_away, taken_away);
  blocks.Release(2);
  EXPECT_EQ(Compute(blocks, 3, Iota(31)), 24) << "the parts of the fourth chunk are gone";
  blocks.Release(3);
  EXPECT_EQ(Compute(blocks, 4, Iota(41)), 40);
}

TEST_F(WindowsTest, APlaceIsReservedBeforeItIsTaken) {
  BlockManager blocks(Config(2));
  EXPECT_EQ(Compute(blocks, 1, Iota(60)), 0);
  EXPECT_EQ(Compute(blocks, 2, Iota(60, 1000)), 0);
  EXPECT_EQ(Compute(blocks, 3, Iota(4, 2000)), -1) << "two long ones may need it all";
  EXPECT_FALSE(blocks.TryFork(1, 4));
  EXPECT_FALSE(blocks.Holds(4));
  blocks.CheckInvariants();
  const int64_t room = blocks.room();
  blocks.Release(2);
  EXPECT_GT(blocks.room(), room);
  EXPECT_TRUE(blocks.TryFork(1, 4));
  blocks.CheckInvariants();
  EXPECT_EQ(blocks.RunIn(1, 4).begin, blocks.RunIn(1, 1).begin);
}

TEST_F(WindowsTest, WhatAStepInFlightMayTouchIsKeptUntilItHasCompleted) {
  BlockManager blocks(Config(4));
  Compute(blocks, 1, Iota(30));
  const int64_t room = blocks.room();
  blocks.BeginStep(++step_);
  ASSERT_TRUE(blocks.TryGrow(1, 31));
  blocks.PrepareWrite(1, 31);
  std::vector<kernels::BlockCopy> copies;
  std::vector<kernels::KeyShift> shifts;
  blocks.EndStep(true, &copies, &shifts);
  blocks.Release(1);
  blocks.CheckInvariants();
  EXPECT_EQ(blocks.window_stats(1).num_held, 2);
  EXPECT_TRUE(blocks.AnyQuarantined());
  EXPECT_EQ(blocks.room(), room);
  blocks.CompleteStep(step_);
  blocks.CheckInvariants();
  EXPECT_EQ(blocks.window_stats(1).num_held, 0);
  EXPECT_FALSE(blocks.AnyQuarantined());
  EXPECT_GT(blocks.room(), room);
}

TEST_F(WindowsTest, SequencesThatRunTogetherWaitForPlacesThatAStepInFlightHolds) {
  BlockManager blocks(Config(3));
  const std::vector<SequenceId> together = {1, 2};
  Compute(blocks, 1, Iota(4), {.num_together = 2});
  blocks.ForkTogether(together);
  Compute(blocks, 3, Iota(20, 1000));
  Compute(blocks, 4, Iota(20, 2000));
  blocks.CheckInvariants();
  EXPECT_FALSE(blocks.TryGrowTogether(together, 20));
  EXPECT_FALSE(blocks.CouldGrowTogetherLater(together, 20));
  blocks.BeginStep(++step_);
  ASSERT_TRUE(blocks.TryGrow(3, 21));
  blocks.PrepareWrite(3, 21);
  std::vector<kernels::BlockCopy> copies;
  std::vector<kernels::KeyShift> shifts;
  blocks.EndStep(true, &copies, &shifts);
  blocks.Release(3);
  EXPECT_FALSE(blocks.TryGrowTogether(together, 20));
  EXPECT_TRUE(blocks.CouldGrowTogetherLater(together, 20));
  blocks.CompleteStep(step_);
  blocks.BeginStep(++step_);
  EXPECT_TRUE(blocks.TryGrowTogether(together, 20));
  blocks.CheckInvariants();
}

TEST_F(WindowsTest, ACopyOnWriteCopiesTheWindowsPartToo) {
  BlockManager blocks(Config(4));
  Compute(blocks, 1, Iota(30));
  ASSERT_TRUE(blocks.TryFork(1, 2));
  blocks.BeginStep(++step_);
  ASSERT_TRUE(blocks.TryGrow(2, 31));
  blocks.PrepareWrite(2, 31);
  std::vector<kernels::BlockCopy> copies;
  std::vector<kernels::KeyShift> shifts;
  blocks.EndStep(true, &copies, &shifts);
  ASSERT_EQ(copies.size(), 1);
  const int32_t source = blocks.BlockIn(1, copies[0].source);
  const int32_t destination = blocks.BlockIn(1, copies[0].destination);
  EXPECT_GE(source, 0);
  EXPECT_GE(destination, 0);
  EXPECT_NE(source, destination);
  EXPECT_EQ(destination, blocks.BlockIn(1, blocks.Table(2).back()));
  blocks.CompleteStep(step_);
  blocks.CheckInvariants();
}

TEST_F(WindowsTest, TooFewBlocksForOneSequenceIsOurOwnMistake) {
  BlockManagerConfig config = Config(1);
  --config.windows[0].num_blocks;
  EXPECT_DEATH(BlockManager blocks(config), "window of 6 tokens");
}

}  // namespace
}  // namespace quire::engine
