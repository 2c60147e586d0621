// Compares the functions for beams of BlockManager with a naive model: each beam has all its tokens
// to itself. A memory of tokens shows whether the right blocks were copied, kept and shared.

#include <algorithm>
#include <map>
#include <random>
#include <rapidcheck.h>
#include <vector>

#include "gtest/gtest.h"

#include "engine/kv/block_manager.h"

namespace quire::engine {
namespace {

struct BeamTotals {
  int64_t copies = 0;
  int64_t moved = 0;    // beams that got the blocks of another
  int64_t refused = 0;  // growth that found too few blocks
};

// The beams of one prompt.
class BeamWorld {
 public:
  BeamWorld(uint32_t seed, BeamTotals& totals)
      : random_(seed),
        totals_(totals),
        block_size_(Pick(1, 5)),
        width_(Pick(2, 5)),
        num_blocks_(Pick(12, 60)),
        blocks_({.num_blocks = num_blocks_, .block_size = block_size_}),
        memory_(static_cast<size_t>(num_blocks_ * block_size_), -1) {}

  void Run() {
    const std::vector<int32_t> prompt = Draw(Pick(1, 12));
    blocks_.BeginStep(++step_);
    blocks_.StartSequence(kFirst, "root", prompt, {.num_together = width_});
    if (!blocks_.TryGrow(kFirst, std::ssize(prompt))) return;
    beams_ = {prompt};
    Write(0, 0);
    EndStep();
    blocks_.Commit(kFirst, prompt, std::ssize(prompt));
    for (int32_t k = 0; k < width_; ++k) ids_.push_back(kFirst + k);
    blocks_.ForkTogether(ids_);
    beams_.assign(static_cast<size_t>(width_), prompt);
    for (int i = 0; i < 12; ++i) {
      if (!Grow()) break;
      Reorder();
      CheckBeams();
    }
    // Others find the prompt in the cache, and nothing that beams generated.
    const std::vector<int32_t>& any = beams_[static_cast<size_t>(Pick(0, width_ - 1))];
    RC_ASSERT(blocks_.NumCached("root", any) <= std::ssize(prompt));
    for (const SequenceId id : ids_) blocks_.Release(id);
    blocks_.CheckInvariants();
    RC_ASSERT(blocks_.num_available() == num_blocks_);
  }

 private:
  static constexpr SequenceId kFirst = 10;

  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  std::vector<int32_t> Draw(int size) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < size; ++i) tokens.push_back(Pick(0, 1 << 20));
    return tokens;
  }

  // Writes the tokens from `begin` on of beam k into its blocks.
  void Write(size_t k, int64_t begin) {
    const std::span<const int32_t> table = blocks_.Table(kFirst + static_cast<SequenceId>(k));
    for (int64_t i = begin; i < std::ssize(beams_[k]); ++i) At(table, i) = beams_[k][i];
  }
  int32_t& At(std::span<const int32_t> table, int64_t i) {
    return memory_[static_cast<size_t>(table[i / block_size_] * block_size_ + i % block_size_)];
  }
  void EndStep() {
    std::vector<kernels::BlockCopy> copies;
    std::vector<kernels::KeyShift> shifts;
    blocks_.EndStep(true, &copies, &shifts);
    blocks_.CompleteStep(step_);
  }

  bool Grow() {
    const int64_t begin = std::ssize(beams_[0]);
    const int64_t end = begin + Pick(1, 3);
    blocks_.BeginStep(++step_);
    const BlockManager::Growth growth = blocks_.GrowthTogether(ids_, end);
    const int64_t available = blocks_.num_available();
    const bool grown = blocks_.TryGrowTogether(ids_, end);
    RC_ASSERT(grown == (growth.num_blocks <= available));
    std::vector<kernels::BlockCopy> copies;
    std::vector<kernels::KeyShift> shifts;
    if (!grown) {  // nothing has changed
      RC_ASSERT(blocks_.num_available() == available);
      ++totals_.refused;
      blocks_.EndStep(false, &copies, &shifts);
      return false;
    }
    RC_ASSERT(blocks_.num_available() == available - growth.num_blocks);
    RC_ASSERT(growth.num_copies < width_);
    blocks_.EndStep(true, &copies, &shifts);
    RC_ASSERT(std::ssize(copies) == growth.num_copies);
    totals_.copies += growth.num_copies;
    for (const kernels::BlockCopy& copy : copies) {
      std::copy_n(memory_.begin() + copy.source * block_size_, block_size_,
                  memory_.begin() + copy.destination * block_size_);
    }
    for (size_t k = 0; k < beams_.size(); ++k) {
      const std::vector<int32_t> more = Draw(static_cast<int>(end - begin));
      beams_[k].insert(beams_[k].end(), more.begin(), more.end());
      Write(k, begin);
    }
    blocks_.CompleteStep(step_);
    for (size_t k = 0; k < beams_.size(); ++k) blocks_.Commit(ids_[k], beams_[k], end);
    return true;
  }

  void Reorder() {
    std::vector<int32_t> parents(static_cast<size_t>(width_));
    std::vector<bool> stays(parents.size());
    for (size_t k = 0; k < parents.size(); ++k) stays[k] = Pick(0, 1) == 0;
    stays[static_cast<size_t>(Pick(0, width_ - 1))] = true;
    for (size_t k = 0; k < parents.size(); ++k) {
      parents[k] = static_cast<int32_t>(k);
      while (!stays[static_cast<size_t>(parents[k])]) parents[k] = Pick(0, width_ - 1);
    }
    const std::vector<std::vector<int32_t>> before = beams_;
    for (size_t k = 0; k < parents.size(); ++k) {
      beams_[k] = before[static_cast<size_t>(parents[k])];
      totals_.moved += parents[k] != static_cast<int32_t>(k) ? 1 : 0;
    }
    blocks_.Reorder(ids_, parents);
  }

  void CheckBeams() {
    blocks_.CheckInvariants();
    for (size_t k = 0; k < beams_.size(); ++k) {
      const std::span<const int32_t> table = blocks_.Table(ids_[k]);
      for (int64_t i = 0; i < std::ssize(beams_[k]); ++i) {
        RC_ASSERT(At(table, i) == beams_[k][static_cast<size_t>(i)]);
      }
    }
  }

  std::mt19937 random_;
  BeamTotals& totals_;
  const int32_t block_size_, width_, num_blocks_;
  BlockManager blocks_;
  std::vector<int32_t> memory_;  // the token of each slot
  std::vector<SequenceId> ids_;
  std::vector<std::vector<int32_t>> beams_;
  int64_t step_ = 0;
};

TEST(BeamsPropertyTest, EachBeamReadsItsOwnTokens) {
  BeamTotals totals;
  EXPECT_TRUE(rc::check("beams grow and move as if each had its own memory", [&totals] {
    const auto seed = *rc::gen::arbitrary<uint32_t>();
    for (uint32_t i = 0; i < 10; ++i) BeamWorld(seed + i, totals).Run();
  }));
  EXPECT_GT(totals.copies, 1000);
  EXPECT_GT(totals.moved, 1000);
  EXPECT_GT(totals.refused, 100);
}

}  // namespace
}  // namespace quire::engine
