#include "engine/batch/lone_input.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/backend_registry.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;

KvCache CacheOf(std::vector<KvGroup> groups) {
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 1});
  return *KvCache::Create(
      *backend, {.layers = {{.num_kv_heads = 1, .key_dim = 8, .value_dim = 8}}, .block_size = 16},
      std::move(groups));
}

TEST(LoneInputTest, ALaterChunkReadsTheBlocksBeforeIt) {
  const KvCache cache = CacheOf({{.num_blocks = 4}});
  const std::vector<int32_t> tokens = {7, 8, 9};
  const ModelInput input = MakeLoneInput(tokens, 15, 2, cache);
  EXPECT_THAT(input.token_ids, ElementsAre(7, 8, 9));
  EXPECT_THAT(input.positions, ElementsAre(15, 16, 17));
  EXPECT_THAT(input.query_starts, ElementsAre(0, 3));
  EXPECT_THAT(input.query_lens, ElementsAre(3));
  EXPECT_THAT(input.context_lens, ElementsAre(18));
  EXPECT_THAT(input.logit_rows, ElementsAre(1, 2));
  ASSERT_EQ(input.groups.size(), 1);
  EXPECT_THAT(input.groups[0].slot_mapping, ElementsAre(15, 16, 17));
  EXPECT_THAT(input.groups[0].block_table, ElementsAre(0, 1));
  EXPECT_EQ(input.groups[0].max_blocks_per_seq, 2);
  EXPECT_TRUE(input.groups[0].copies.empty());
}

TEST(LoneInputTest, AWindowsBlocksComeRoundAgain) {
  const KvCache cache = CacheOf(
      {{.num_blocks = 4}, {.pattern = kernels::AttentionPattern::Window(8), .num_blocks = 2}});
  const std::vector<int32_t> tokens = {7, 8};
  const ModelInput input = MakeLoneInput(tokens, 47, 1, cache);
  ASSERT_EQ(input.groups.size(), 2);
  EXPECT_THAT(input.groups[0].slot_mapping, ElementsAre(47, 48));
  EXPECT_THAT(input.groups[1].block_table, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(input.groups[1].slot_mapping, ElementsAre(15, 16));
}

}  // namespace
}  // namespace quire::engine
