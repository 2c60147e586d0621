// Tests blocks that come from elsewhere than a step, and what the cache tells of its blocks to
// those who keep them elsewhere.

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "engine/kv/block_manager.h"

namespace quire::engine {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kBlockSize = 4;
constexpr SequenceId kLoad = -1;

Tokens Counted(int32_t n, int32_t first = 0) {
  Tokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Knows the tokens, from the root on, of each block that was offered and not withdrawn.
class KnowingSpill final : public BlockSpill {
 public:
  void Offer(int32_t block, int32_t parent, std::string_view root_key,
             std::span<const int32_t> tokens) override {
    ASSERT_FALSE(known.contains(block)) << "block " << block << " was not withdrawn";
    std::string text = parent < 0 ? std::string(root_key) : known.at(parent);
    for (const int32_t token : tokens) text += ' ' + std::to_string(token);
    known[block] = text;
    ++num_offers;
  }
  void Withdraw(int32_t block) override { known.erase(block); }
  void Discard(int32_t block) override { num_discarded += known.erase(block); }

  std::map<int32_t, std::string> known;
  int num_offers = 0;
  size_t num_discarded = 0;
};

class LoadsTest : public ::testing::Test {
 protected:
  void Run(SequenceId id, const Tokens& tokens, const std::string& root = "root",
           PinId on = kNoPin) {
    blocks_.BeginStep(++step_);
    blocks_.StartSequence(id, root, tokens, {}, /*allow_copy=*/true, on);
    ASSERT_TRUE(blocks_.TryGrow(id, std::ssize(tokens)));
    blocks_.EndStep(true, &copies_, &shifts_);
    blocks_.CompleteStep(step_);
    blocks_.Commit(id, tokens, std::ssize(tokens));
  }
  void RunAndEnd(SequenceId id, const Tokens& tokens) {
    Run(id, tokens);
    blocks_.Release(id);
  }
  int64_t BeginLoad(const Tokens& tokens, const std::string& root = "root") {
    return blocks_.TryBeginLoad(kLoad, root, tokens, TenantCharges::kNamelessPayer);
  }
  int64_t NumCached(Tokens tokens, const std::string& root = "root") {
    tokens.push_back(-1);  // the last one is not looked up
    return blocks_.NumCached(root, tokens);
  }
  void TearDown() override { blocks_.CheckInvariants(); }

  KnowingSpill spill_;
  BlockManager blocks_{{.num_blocks = 10, .block_size = kBlockSize, .spill = &spill_}};
  int64_t step_ = 0;
  std::vector<kernels::BlockCopy> copies_;
  std::vector<kernels::KeyShift> shifts_;
};

TEST_F(LoadsTest, WhatIsLoadedIsCachedForTheNext) {
  const Tokens tokens = Counted(12);
  EXPECT_EQ(BeginLoad(tokens), 0);
  EXPECT_EQ(blocks_.Table(kLoad).size(), 3u);
  EXPECT_EQ(blocks_.stats().num_held, 3);
  EXPECT_EQ(NumCached(tokens), 0) << "nothing is there yet";
  blocks_.CheckInvariants();
  blocks_.EndLoad(kLoad, tokens, 12);
  EXPECT_EQ(blocks_.stats().num_held, 0);
  EXPECT_EQ(NumCached(tokens), 12);
  EXPECT_EQ(NumCached(tokens, "another root"), 0);
}

TEST_F(LoadsTest, OnlyWhatWasLoadedIsCached) {
  const Tokens tokens = Counted(12);
  EXPECT_EQ(BeginLoad(tokens), 0);
  blocks_.EndLoad(kLoad, tokens, 8);
  EXPECT_EQ(NumCached(tokens), 8);
  EXPECT_EQ(blocks_.stats().num_free, 8);
  EXPECT_EQ(BeginLoad(Counted(4, 100)), 0);
  blocks_.Release(kLoad);
  EXPECT_EQ(NumCached(Counted(4, 100)), 0);
}

TEST_F(LoadsTest, ALoadSharesWhatTheCacheHas) {
  RunAndEnd(1, Counted(8));
  const Tokens tokens = Counted(16);
  EXPECT_EQ(BeginLoad(tokens), 2);
  EXPECT_EQ(blocks_.stats().num_held, 4);
  RunAndEnd(2, Counted(12));  // computes the third block meanwhile
  blocks_.EndLoad(kLoad, tokens, 16);
  EXPECT_EQ(NumCached(tokens), 16);
  EXPECT_EQ(blocks_.stats().num_cached, 4) << "one content has one block";
}

TEST_F(LoadsTest, ALoadThatDoesNotFitTakesNothing) {
  Run(1, Counted(28));
  EXPECT_EQ(BeginLoad(Counted(16, 100)), -1);
  EXPECT_EQ(blocks_.stats().num_held, 7);
  EXPECT_EQ(BeginLoad(Counted(12, 100)), 0);
  blocks_.EndLoad(kLoad, Counted(12, 100), 12);
  blocks_.Release(1);
}

TEST_F(LoadsTest, WholeBlocksAreOfferedAfterTheirParents) {
  Run(1, Counted(10));
  EXPECT_EQ(spill_.num_offers, 2) << "the third is not full";
  EXPECT_EQ(spill_.known.at(blocks_.Table(1)[1]), "root 0 1 2 3 4 5 6 7");
  blocks_.Commit(1, Counted(12), 10);
  blocks_.BeginStep(++step_);
  EXPECT_TRUE(blocks_.TryGrow(1, 12));
  blocks_.EndStep(true, &copies_, &shifts_);
  blocks_.CompleteStep(step_);
  blocks_.Commit(1, Counted(12), 12);
  EXPECT_EQ(spill_.known.at(blocks_.Table(1)[2]), "root 0 1 2 3 4 5 6 7 8 9 10 11");
  Run(2, Counted(8));
  EXPECT_EQ(spill_.num_offers, 3) << "the cache had them";
  blocks_.Release(1);
  blocks_.Release(2);
}

TEST_F(LoadsTest, LoadedBlocksAreOfferedToo) {
  BeginLoad(Counted(8));
  const std::vector<int32_t> table(blocks_.Table(kLoad).begin(), blocks_.Table(kLoad).end());
  blocks_.EndLoad(kLoad, Counted(8), 8);
  Run(1, Counted(12));  // whose third block needs them
  EXPECT_EQ(spill_.known.at(table[1]), "root 0 1 2 3 4 5 6 7");
  blocks_.Release(1);
}

TEST_F(LoadsTest, EvictedBlocksAreWithdrawn) {
  RunAndEnd(1, Counted(20));
  EXPECT_EQ(spill_.known.size(), 5u);
  RunAndEnd(2, Counted(40, 100));  // takes all blocks
  EXPECT_EQ(spill_.known.size(), 10u);
  for (const auto& [block, text] : spill_.known) {
    EXPECT_EQ(text.rfind("root 100", 0), 0u) << text;
  }
  EXPECT_EQ(spill_.num_discarded, 0u);
}

TEST_F(LoadsTest, UnsoundBlocksAreDiscarded) {
  Run(1, Counted(8));
  blocks_.ReleaseUnlisted(1);
  EXPECT_EQ(spill_.num_discarded, 2u);
  EXPECT_TRUE(spill_.known.empty());
}

TEST_F(LoadsTest, WhatFollowsAPinIsNotOffered) {
  RunAndEnd(1, Counted(8));
  ASSERT_TRUE(blocks_.TryPin(7, "root", Counted(8)));
  const int before = spill_.num_offers;
  Run(2, Counted(16), "root of 7", /*on=*/7);
  Run(3, Counted(16), "root of 8", /*on=*/8);  // which has ended
  EXPECT_EQ(spill_.num_offers, before);
  blocks_.Release(2);
  blocks_.Release(3);
  blocks_.Unpin(7);
}

TEST_F(LoadsTest, WhatAStepHasYetToCopyIsNotOffered) {
  Run(1, Counted(6));
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(1, 8));
  blocks_.EndStep(true, &copies_, &shifts_);
  // While the step is in flight, a pin seals the block into which it writes. The next step copies
  // the block.
  ASSERT_TRUE(blocks_.TryPin(7, "root", Counted(6)));
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(1, 9));
  blocks_.EndStep(true, &copies_, &shifts_);
  ASSERT_EQ(copies_.size(), 1u);
  const int32_t copy = copies_[0].destination;
  blocks_.CompleteStep(step_ - 1);
  blocks_.Commit(1, Counted(8), 8);
  EXPECT_FALSE(spill_.known.contains(copy));
  blocks_.CompleteStep(step_);
  blocks_.Commit(1, Counted(9), 9);
  EXPECT_EQ(spill_.num_offers, 1) << "what follows it is not offered either";
  blocks_.Release(1);
  blocks_.Unpin(7);
}

TEST_F(LoadsTest, ForksOfferWhatTheyFill) {
  Run(1, Counted(8));
  ASSERT_TRUE(blocks_.TryFork(1, 2));
  const int before = spill_.num_offers;
  blocks_.BeginStep(++step_);
  ASSERT_TRUE(blocks_.TryGrow(2, 12));
  blocks_.EndStep(true, &copies_, &shifts_);
  blocks_.CompleteStep(step_);
  blocks_.Commit(2, Counted(12), 12);
  EXPECT_EQ(spill_.num_offers, before + 1);
  blocks_.Release(1);
  blocks_.Release(2);
}

}  // namespace
}  // namespace quire::engine
