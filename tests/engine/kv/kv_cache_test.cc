#include "engine/kv/kv_cache.h"

#include <initializer_list>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/backend_registry.h"
#include "kernels/ops/attention_pattern.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<kernels::AttentionPattern> Windows(std::initializer_list<int64_t> tokens) {
  std::vector<kernels::AttentionPattern> patterns;
  for (const int64_t n : tokens) patterns.push_back(kernels::AttentionPattern::Window(n));
  return patterns;
}

TEST(GroupLayersTest, EachWindowIsAGroupAndTheFirstSeesAll) {
  const std::vector<KvGroup> groups = GroupLayers(Windows({64, 0, 16, 64, 0}), 1000);
  ASSERT_EQ(groups.size(), 3);
  EXPECT_TRUE(groups[0].pattern.sees_all());
  EXPECT_THAT(groups[0].layers, ElementsAre(1, 4));
  EXPECT_EQ(groups[1].pattern.tokens, 16);
  EXPECT_THAT(groups[1].layers, ElementsAre(2));
  EXPECT_EQ(groups[2].pattern.tokens, 64);
  EXPECT_THAT(groups[2].layers, ElementsAre(0, 3));
}

TEST(GroupLayersTest, AWindowThatNoContextOutgrowsIsNone) {
  ASSERT_EQ(GroupLayers(Windows({64, 0}), 64).size(), 1);
  const std::vector<KvGroup> groups = GroupLayers(Windows({64, 64}), 65);
  ASSERT_EQ(groups.size(), 2);
  EXPECT_THAT(groups[0].layers, IsEmpty());
}

TEST(KvCacheTest, LayersLieSideBySideInTheirGroupsBlocks) {
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 1});
  std::vector<KvGroup> groups = GroupLayers(Windows({8, 0, 8}), 100);
  groups[0].num_blocks = 5;
  groups[1].num_blocks = 3;
  const KvCacheShape shape = {
      .num_kv_heads = 2, .head_dim = 8, .block_size = 16, .dtype = kernels::DType::kF32};
  const KvCache cache = *KvCache::Create(*backend, shape, groups);
  EXPECT_EQ(cache.group_of(0), 1);
  EXPECT_EQ(cache.group_of(1), 0);
  EXPECT_EQ(cache.bytes_per_token(), 3 * 2 * 2 * 8 * 4);
  EXPECT_EQ(cache.bytes(), (5 + 3 * 2) * shape.bytes_per_block());
  const kernels::CacheView first = cache.layer(0), third = cache.layer(2);
  EXPECT_EQ(first.num_blocks(), 3);
  EXPECT_EQ(cache.layer(1).num_blocks(), 5);
  EXPECT_EQ(third.keys.data<char>() - first.keys.data<char>(), shape.bytes_per_block());
  EXPECT_EQ(first.keys.raw(), cache.blocks(1).raw());
  EXPECT_EQ(cache.blocks(1).num_bytes(), 3 * 2 * shape.bytes_per_block());
}

}  // namespace
}  // namespace quire::engine
