#include "engine/kv/kv_budget.h"

#include <numeric>
#include <rapidcheck.h>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

const KvCacheShape kShape = {.layers = {{.num_kv_heads = 1, .key_dim = 8, .value_dim = 8},
                                        {.num_kv_heads = 1, .key_dim = 8, .value_dim = 8},
                                        {.num_kv_heads = 1, .key_dim = 8, .value_dim = 8},
                                        {.num_kv_heads = 1, .key_dim = 8, .value_dim = 8}},
                             .block_size = 16};
constexpr int64_t kBlock = 16 * 2 * 8 * 2;  // the bytes of a block in one layer

int64_t Bytes(const std::vector<KvGroup>& groups) {
  return std::accumulate(groups.begin(), groups.end(), int64_t{0}, [](int64_t sum, const auto& g) {
    return sum + g.num_blocks * static_cast<int64_t>(g.layers.size()) * kBlock;
  });
}

TEST(KvBudgetTest, WithoutWindowsItIsWholeContextsOrAllThereIs) {
  std::vector<KvGroup> groups = {{.layers = {0, 1}}};
  KvBudget budget = {.bytes = 1 << 30, .max_seqs = 4, .max_model_len = 100, .max_step_tokens = 32};
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  EXPECT_EQ(groups[0].num_blocks, 4 * 7);
  budget.use_all = true;
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  EXPECT_EQ(groups[0].num_blocks, (1 << 30) / (2 * kBlock));
  budget.bytes = 11 * 2 * kBlock + 1;
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  EXPECT_EQ(groups[0].num_blocks, 11);
  budget.use_all = false;
  budget.bytes = 4 * 7 * 2 * kBlock;
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  EXPECT_EQ(groups[0].num_blocks, 4 * 7);
  budget.bytes -= 1;
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  EXPECT_EQ(groups[0].num_blocks, 4 * 7 - 1);
  budget.bytes = 2 * 2 * kBlock;
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  EXPECT_EQ(groups[0].num_blocks, 2);
  budget.bytes -= 1;
  const absl::Status status = DivideKvMemory(kShape, budget, groups);
  EXPECT_EQ(status.message(),
            "the KV cache has 2047 bytes and needs at least 2048; raise --kv_cache_mib or lower "
            "--block_size");
}

TEST(KvBudgetTest, LongContextsGetMoreThanTheirWindows) {
  std::vector<KvGroup> groups = {
      {.layers = {0}}, {.pattern = kernels::AttentionPattern::Window(64), .layers = {1, 2, 3}}};
  const KvBudget budget = {
      .bytes = 1 << 22, .max_seqs = 4, .max_model_len = 1 << 20, .max_step_tokens = 32};
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  const int64_t most =
      WindowBlocksPerSequence(groups[1].pattern, BlockConfigFor(groups, 16, 32, 0));
  EXPECT_EQ(groups[1].num_blocks, 4 * most);
  EXPECT_GT(groups[0].num_blocks, 20 * groups[1].num_blocks);
}

TEST(KvBudgetTest, TheLeastIsTwoBlocksAndTheWindowOfASequence) {
  std::vector<KvGroup> groups = {{.layers = {0}},
                                 {.pattern = kernels::AttentionPattern::Window(64), .layers = {1}}};
  const int64_t most =
      WindowBlocksPerSequence(groups[1].pattern, BlockConfigFor(groups, 16, 32, 0));
  KvBudget budget = {
      .bytes = (2 + most) * kBlock, .max_seqs = 4, .max_model_len = 4096, .max_step_tokens = 32};
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  EXPECT_EQ(groups[0].num_blocks, 2);
  EXPECT_EQ(groups[1].num_blocks, most);
  budget.bytes -= 1;
  EXPECT_FALSE(DivideKvMemory(kShape, budget, groups).ok());
}

TEST(KvBudgetTest, AModelOfWindowsAloneStillHasBlocksToCount) {
  std::vector<KvGroup> groups = {
      {}, {.pattern = kernels::AttentionPattern::Window(64), .layers = {0, 1}}};
  const KvBudget budget = {
      .bytes = 1 << 20, .max_seqs = 4, .max_model_len = 4096, .max_step_tokens = 32};
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  EXPECT_EQ(groups[0].num_blocks, 4 * 256);
}

TEST(KvBudgetTest, LessThanABlockForEachSequenceIsEnoughForOne) {
  std::vector<KvGroup> groups = {
      {}, {.pattern = kernels::AttentionPattern::Chunk(1), .layers = {0, 1}}};
  const KvBudget budget = {
      .bytes = 8 * kBlock, .max_seqs = 5, .max_model_len = 1, .max_step_tokens = 1};
  ASSERT_TRUE(DivideKvMemory(kShape, budget, groups).ok());
  EXPECT_GE(groups[1].num_blocks, 1);
  EXPECT_LE(Bytes(groups), budget.bytes);
}

TEST(KvBudgetTest, NeverMoreThanTheBudgetAndAlwaysASequence) {
  int64_t refused = 0;
  EXPECT_TRUE(rc::check([&] {
    const KvBudget budget = {.bytes = *rc::gen::inRange<int64_t>(1, 2000) * kBlock,
                             .use_all = *rc::gen::arbitrary<bool>(),
                             .max_seqs = *rc::gen::inRange(1, 20),
                             .max_model_len = *rc::gen::inRange(1, 3000),
                             .max_step_tokens = *rc::gen::inRange(1, 200)};
    std::vector<KvGroup> groups = {{.layers = std::vector<int64_t>(*rc::gen::inRange(0, 3))}};
    for (int i = *rc::gen::inRange(groups[0].layers.empty() ? 1 : 0, 3); i > 0; --i) {
      const int64_t tokens = *rc::gen::inRange(1, 500);
      groups.push_back({.pattern = *rc::gen::arbitrary<bool>()
                                       ? kernels::AttentionPattern::Window(tokens)
                                       : kernels::AttentionPattern::Chunk(tokens),
                        .layers = std::vector<int64_t>(*rc::gen::inRange(1, 4))});
    }
    if (!DivideKvMemory(kShape, budget, groups).ok()) {
      ++refused;
      return;
    }
    RC_ASSERT(Bytes(groups) <= budget.bytes);
    RC_ASSERT(groups[0].num_blocks >= 2);
    BlockManager blocks(BlockConfigFor(groups, kShape.block_size, budget.max_step_tokens, 0));
  }));
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace quire::engine
