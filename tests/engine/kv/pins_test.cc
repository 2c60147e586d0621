// Tests pins: what they hold, who shares it, and what becomes of it when they end.

#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "engine/kv/block_manager.h"
#include "kernels/ops/attention_pattern.h"

namespace quire::engine {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kBlockSize = 4;
constexpr PinId kPin = 7;

Tokens Iota(int32_t n, int32_t first = 0) {
  Tokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens Joined(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

class PinsTest : public ::testing::Test {
 protected:
  explicit PinsTest(const BlockManagerConfig& config = {.num_blocks = 16, .block_size = kBlockSize})
      : blocks_(config) {}

  BlockManager::StartResult Start(SequenceId id, const Tokens& tokens, const std::string& root,
                                  PinId on = kNoPin) {
    blocks_.BeginStep(++step_);
    const auto start = blocks_.StartSequence(id, root, tokens, {}, /*allow_copy=*/true, on);
    EXPECT_TRUE(blocks_.TryGrow(id, std::ssize(tokens)));
    blocks_.PrepareWrite(id, std::ssize(tokens));
    return start;
  }
  void End() {
    copies_.clear();
    blocks_.EndStep(true, &copies_, &shifts_);
  }
  void Complete(int64_t step) {
    blocks_.CompleteStep(step);
    blocks_.CheckInvariants();
  }
  void Commit(SequenceId id, const Tokens& tokens) {
    blocks_.Commit(id, tokens, std::ssize(tokens));
    blocks_.CheckInvariants();
  }
  // Computes `tokens` in one step. Returns the number of cached tokens.
  int64_t Compute(SequenceId id, const Tokens& tokens, const std::string& root, PinId on = kNoPin) {
    const auto start = Start(id, tokens, root, on);
    End();
    Complete(step_);
    Commit(id, tokens);
    return start.num_cached;
  }
  int64_t Run(SequenceId id, const Tokens& tokens, const std::string& root, PinId on = kNoPin) {
    const int64_t cached = Compute(id, tokens, root, on);
    blocks_.Release(id);
    blocks_.CheckInvariants();
    return cached;
  }
  // Pins `tokens` under the root "owner".
  void Pin(const Tokens& tokens, PinId pin = kPin) {
    Run(1000, tokens, "owner");
    ASSERT_TRUE(blocks_.TryPin(pin, "owner", tokens));
    blocks_.CheckInvariants();
  }
  void EmptySteps(int64_t n) {
    for (; n > 0; --n) {
      blocks_.BeginStep(++step_);
      blocks_.EndStep(true, &copies_, &shifts_);
      blocks_.CompleteStep(step_);
    }
  }

  BlockManager blocks_;
  std::vector<kernels::BlockCopy> copies_;
  std::vector<kernels::KeyShift> shifts_;
  int64_t step_ = 0;
};

TEST_F(PinsTest, PinsAllBlocksOrNone) {
  EXPECT_FALSE(blocks_.TryPin(kPin, "owner", Iota(10)));
  Run(1, Iota(9), "owner");
  EXPECT_FALSE(blocks_.TryPin(kPin, "owner", Iota(10))) << "the last token is not cached";
  EXPECT_FALSE(blocks_.TryPin(kPin, "owner", Iota(12))) << "the last block is not cached";
  EXPECT_EQ(blocks_.stats().num_pinned, 0);
  EXPECT_FALSE(blocks_.TryPin(kPin, "other", Iota(9)));
  EXPECT_FALSE(blocks_.IsPinned(kPin));
  EXPECT_TRUE(blocks_.TryPin(kPin, "owner", Iota(9)));
  EXPECT_TRUE(blocks_.IsPinned(kPin));
  EXPECT_EQ(blocks_.stats().num_pinned, 3);
  EXPECT_EQ(blocks_.stats().num_held, 3);
  EXPECT_EQ(blocks_.stats().num_quarantined, 0);
  blocks_.CheckInvariants();
}

TEST_F(PinsTest, PinnedBlocksAreNotEvicted) {
  Pin(Iota(10));
  Run(1, Iota(13 * kBlockSize, 1000), "other");
  EXPECT_EQ(blocks_.FreeCached(100), 13);
  EXPECT_EQ(blocks_.stats().num_pinned, 3);
  EXPECT_EQ(Run(2, Iota(12), "owner"), 10);
}

TEST_F(PinsTest, BlocksAreCachedWhenTheirLastPinEnds) {
  Pin(Iota(10));
  ASSERT_TRUE(blocks_.TryPin(8, "owner", Iota(8)));
  EXPECT_EQ(blocks_.stats().num_pinned, 3);
  blocks_.Unpin(kPin);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_pinned, 2);
  EXPECT_EQ(blocks_.stats().num_cached, 1);
  blocks_.Unpin(8);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_pinned, 0);
  EXPECT_EQ(blocks_.stats().num_cached, 3);
  EXPECT_EQ(Run(1, Iota(11), "owner"), 10) << "they are still cached";
}

TEST_F(PinsTest, NothingWaitsForPinnedBlocks) {
  Pin(Iota(10));
  Compute(1, Iota(13 * kBlockSize, 1000), "other");
  blocks_.BeginStep(++step_);
  EXPECT_FALSE(blocks_.TryGrow(1, 13 * kBlockSize + 1));
  EXPECT_FALSE(blocks_.CouldGrowLater(1, 13 * kBlockSize + 1));
  EXPECT_FALSE(blocks_.AnyQuarantined());
  End();
}

TEST_F(PinsTest, WhoAppendsToAPinnedTailCopiesIt) {
  Tokens tokens = Iota(10);
  Compute(1, tokens, "owner");
  const int32_t tail = blocks_.Table(1)[2];
  ASSERT_TRUE(blocks_.TryPin(kPin, "owner", tokens));
  EXPECT_EQ(blocks_.ExclusiveOf(1).num_blocks, 0) << "a release would free nothing";
  EXPECT_EQ(blocks_.NumBlocksToGrow(1, 11), 1);
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(1, 13));
  End();
  ASSERT_EQ(copies_.size(), 1u);
  EXPECT_EQ(copies_[0].source, tail);
  EXPECT_NE(blocks_.Table(1)[2], tail);
  Complete(step_);
  tokens = Iota(13);
  Commit(1, tokens);
  // Another pin of the longer sequence has a last block of its own.
  ASSERT_TRUE(blocks_.TryPin(8, "owner", tokens));
  EXPECT_EQ(blocks_.stats().num_pinned, 5);
  blocks_.Unpin(8);
  blocks_.Release(1);
  blocks_.CheckInvariants();
}

TEST_F(PinsTest, ATailPinnedDuringAStepThatWritesIntoItStaysAsItWas) {
  Compute(1, Iota(6), "owner");
  const int32_t tail = blocks_.Table(1)[1];
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(1, 8));  // two tokens that fill the tail
  End();
  ASSERT_TRUE(blocks_.TryPin(kPin, "owner", Iota(6)));
  // Another sequence computes the same whole block, which the tail must not become.
  Complete(step_);
  Commit(1, Iota(8));
  EXPECT_EQ(blocks_.Table(1)[1], tail);
  EXPECT_EQ(Run(2, Iota(9), "owner"), 6);
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(1, 9));
  End();
  Complete(step_);
  Commit(1, Iota(9));
  blocks_.Release(1);
  blocks_.Unpin(kPin);
  blocks_.CheckInvariants();
}

TEST_F(PinsTest, TenantsShareThePrefixAndNothingAfterIt) {
  const Tokens prefix = Iota(10);
  Pin(prefix);
  const std::string a = CacheRootKey("m", "", "a", "", "", kPin);
  const std::string b = CacheRootKey("m", "", "b", "", "", kPin);
  const Tokens more = Joined(prefix, Iota(7, 50));
  EXPECT_EQ(Start(1, more, a, kPin).num_pinned, 10);
  End();
  EXPECT_EQ(copies_.size(), 1u) << "the tail";
  Complete(step_);
  Commit(1, more);
  EXPECT_EQ(blocks_.stats().num_hit_blocks, 2);
  EXPECT_EQ(Compute(2, more, b, kPin), 10) << "b does not see what a computed";
  EXPECT_EQ(blocks_.Table(1)[1], blocks_.Table(2)[1]);
  EXPECT_NE(blocks_.Table(1)[2], blocks_.Table(2)[2]);
  EXPECT_EQ(Run(3, Joined(more, {99}), a, kPin), 17) << "a does";
  EXPECT_EQ(Run(4, more, "owner"), 10) << "and what the owner computes without the name is apart";
  blocks_.Release(1);
  blocks_.Release(2);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_held, 3);
}

TEST_F(PinsTest, EachPrefixHasItsOwnContinuations) {
  const Tokens prefix = Iota(8);
  Pin(prefix);
  ASSERT_TRUE(blocks_.TryPin(8, "owner", prefix));
  const Tokens more = Joined(prefix, Iota(5, 50));
  EXPECT_EQ(Run(1, more, CacheRootKey("m", "", "a", "", "", kPin), kPin), 8);
  EXPECT_EQ(Run(2, more, CacheRootKey("m", "", "a", "", "", 8), 8), 8);
  EXPECT_EQ(Run(3, more, CacheRootKey("m", "", "a", "", "", kPin), kPin), 12);
}

TEST_F(PinsTest, APromptMayEndWithThePrefix) {
  for (const int32_t n : {7, 8, 9}) {
    Pin(Iota(n), 100 + n);
    const std::string root = CacheRootKey("m", "", "a", "", "", 100 + n);
    EXPECT_EQ(Compute(n, Iota(n), root, 100 + n), n - 1) << "the last token is computed";
    Tokens more = Iota(n + 6);
    blocks_.BeginStep(++step_);
    ASSERT_TRUE(blocks_.TryGrow(n, n + 6));
    End();
    Complete(step_);
    Commit(n, more);
    blocks_.Release(n);
    more.push_back(99);
    EXPECT_EQ(Run(n, more, root, 100 + n), n + 6);
  }
}

TEST_F(PinsTest, SamplesGoOnUnderTheRootOfTheirRequest) {
  Pin(Iota(6));
  const std::string root = CacheRootKey("m", "", "a", "", "", kPin);
  Compute(1, Iota(7), root, kPin);
  ASSERT_TRUE(blocks_.TryFork(1, 2));
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(2, 12));
  End();
  Complete(step_);
  Commit(2, Iota(12));
  blocks_.Release(1);
  blocks_.Release(2);
  blocks_.CheckInvariants();
  EXPECT_EQ(Run(3, Iota(13), root, kPin), 12);
}

TEST_F(PinsTest, WhoStartsAfterTheEndOfAPinComputesEverything) {
  const Tokens more = Iota(14);
  Pin(Iota(10));
  const std::string root = CacheRootKey("m", "", "a", "", "", kPin);
  Compute(1, more, root, kPin);
  blocks_.Unpin(kPin);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.Table(1).size(), 4u) << "what runs keeps its blocks";
  EXPECT_EQ(Compute(2, more, root, kPin), 0);
  EXPECT_EQ(Run(3, more, root, kPin), 13) << "sequences that start later share among them";
  blocks_.Release(1);
  blocks_.Release(2);
  blocks_.CheckInvariants();
}

TEST_F(PinsTest, WhatFollowedAnEndedPinIsEvictedFirst) {
  Pin(Iota(8));
  const std::string root = CacheRootKey("m", "", "a", "", "", kPin);
  Run(1, Iota(16), "plain");
  EmptySteps(100);
  Run(2, Iota(16), root, kPin);  // used last
  EXPECT_EQ(blocks_.stats().num_roots, 3);
  blocks_.Unpin(kPin);
  EmptySteps(1);
  EXPECT_EQ(blocks_.FreeCached(2), 2);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_roots, 2);
  EXPECT_EQ(blocks_.NumCached("plain", Iota(17)), 16);
}

TEST_F(PinsTest, ASequenceThatOutlivesItsPinLeavesBlocksThatAreEvictedFirst) {
  Pin(Iota(8));
  const std::string root = CacheRootKey("m", "", "a", "", "", kPin);
  Run(1, Iota(16), "plain");
  Compute(2, Iota(16), root, kPin);
  blocks_.Unpin(kPin);
  EmptySteps(100);
  blocks_.Release(2);
  EXPECT_EQ(blocks_.FreeCached(2), 2);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.NumCached("plain", Iota(17)), 16);
}

TEST_F(PinsTest, AForkKeepsTheLeadingBlocksOfAPin) {
  Pin(Iota(22));
  EXPECT_FALSE(blocks_.TryPinFork(8, kPin, Iota(23))) << "more than the pin holds";
  EXPECT_FALSE(blocks_.TryPinFork(8, 9, Iota(5))) << "no such pin";
  EXPECT_FALSE(blocks_.TryPinFork(8, kPin, Joined(Iota(8), Iota(2, 9)))) << "other tokens";
  EXPECT_FALSE(blocks_.IsPinned(8));
  ASSERT_TRUE(blocks_.TryPinFork(8, kPin, Iota(10)));
  ASSERT_TRUE(blocks_.TryPinFork(9, 8, Iota(10)));
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_pinned, 6);
  EXPECT_EQ(blocks_.charges().Charge(TenantCharges::kNamelessPayer), 6) << "each block counts once";
  blocks_.Unpin(kPin);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_pinned, 3);
  EXPECT_EQ(blocks_.FreeCached(100), 3);
  // Who writes behind the ten tokens copies the last block.
  EXPECT_EQ(Run(1, Joined(Iota(10), Iota(8, 500)), "owner"), 10);
  blocks_.Unpin(8);
  EXPECT_EQ(blocks_.stats().num_pinned, 3);
  blocks_.Unpin(9);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.stats().num_held, 0);
}

TEST_F(PinsTest, UnknownLogitsDoNotUnlistAPinnedBlock) {
  Compute(1, Iota(10), "owner");
  ASSERT_TRUE(blocks_.TryPin(kPin, "owner", Iota(10)));
  blocks_.ReleaseUnlisted(1);
  blocks_.CheckInvariants();
  EXPECT_EQ(Run(2, Iota(11), "owner"), 10);
}

// Layers with a window of six tokens: two blocks and the part of a third.
class PinnedWindowsTest : public PinsTest {
 protected:
  static constexpr auto kWindow = kernels::AttentionPattern::Window(6);
  static constexpr BlockManagerConfig kLimits = {
      .num_blocks = 64, .block_size = kBlockSize, .max_step_tokens = 64};
  static BlockManagerConfig Config() {
    BlockManagerConfig config = kLimits;
    config.windows = {{.pattern = kWindow,
                       .num_blocks = static_cast<int32_t>(
                           WindowBlocksPerSequence(kWindow, kLimits) + kPinnedParts)}};
    return config;
  }
  static constexpr int32_t kPinnedParts = 3;

  PinnedWindowsTest() : PinsTest(Config()) {}
};

TEST_F(PinnedWindowsTest, HoldsThePartsThatAContinuationSees) {
  Pin(Iota(22));  // the last block begins at 20, from where a query sees 15 .. 20: blocks 3 to 5
  EXPECT_EQ(blocks_.window_stats(1).num_held, kPinnedParts);
  // A long sequence takes every spare part.
  Run(1, Iota(64, 1000), "other");
  Run(2, Iota(64, 2000), "other");
  EXPECT_GT(blocks_.window_stats(1).num_taken_away, 0);
  EXPECT_EQ(Run(3, Iota(25), CacheRootKey("m", "", "a", "", "", kPin), kPin), 22);
  EXPECT_EQ(Run(4, Iota(22), CacheRootKey("m", "", "a", "", "", kPin), kPin), 21);
  blocks_.Unpin(kPin);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.window_stats(1).num_held, 0);
}

TEST_F(PinnedWindowsTest, AForkNeedsItsOwnPartsAndPlaces) {
  Pin(Iota(22));
  Run(1, Iota(64, 1000), "other");
  Run(2, Iota(64, 2000), "other");
  EXPECT_FALSE(blocks_.TryPinFork(8, kPin, Iota(10))) << "the parts are gone";
  ASSERT_TRUE(blocks_.TryPinFork(8, kPin, Iota(21)));
  blocks_.Unpin(kPin);
  blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.window_stats(1).num_held, kPinnedParts);
  Compute(3, Iota(64, 3000), "other");
  EXPECT_FALSE(blocks_.TryPinFork(9, 8, Iota(21))) << "no places in the window";
  blocks_.Release(3);
  blocks_.CheckInvariants();
}

TEST_F(PinnedWindowsTest, PinsNothingWithoutPlacesInAWindow) {
  Pin(Iota(22));
  Run(1, Iota(22, 500), "owner");
  Compute(2, Iota(64, 1000), "other");
  EXPECT_FALSE(blocks_.TryPin(8, "owner", Iota(22, 500)));
  EXPECT_EQ(blocks_.stats().num_pinned, 6);
  blocks_.Release(2);
  blocks_.CheckInvariants();
}

TEST_F(PinnedWindowsTest, PinsWithTheFirstPartAndTheLastPlacesOfAWindow) {
  Run(1, Iota(4), "owner");  // the first block of all has part 0
  ASSERT_TRUE(blocks_.TryPin(kPin, "owner", Iota(4)));
  blocks_.Unpin(kPin);
  Run(2, Iota(22, 500), "owner");
  Compute(3, Iota(64, 1000), "other");
  Compute(4, Iota(4, 2000), "other");  // both together leave kPinnedParts places
  EXPECT_TRUE(blocks_.TryPin(8, "owner", Iota(22, 500)));
  blocks_.Release(3);
  blocks_.Release(4);
  blocks_.CheckInvariants();
}

TEST_F(PinnedWindowsTest, PinsNothingWithoutItsParts) {
  Run(1, Iota(22), "owner");
  Run(2, Iota(64, 1000), "other");
  Run(3, Iota(64, 2000), "other");
  EXPECT_EQ(blocks_.NumCached("owner", Iota(23)), 22) << "group 0 has all";
  EXPECT_FALSE(blocks_.TryPin(kPin, "owner", Iota(22)));
  blocks_.CheckInvariants();
}

}  // namespace
}  // namespace quire::engine
