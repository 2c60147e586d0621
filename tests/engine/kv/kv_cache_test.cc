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

// Each block that one head hides is seen by another head, so no block can be dropped.
TEST(GroupLayersTest, LayersWhoseHeadsHideBlocksKeepAllKeys) {
  std::vector<kernels::AttentionPattern> patterns = Windows({64, 0, 0});
  patterns[2] = kernels::AttentionPattern::Blocks(64, 16, 8, 1);
  const std::vector<KvGroup> groups = GroupLayers(patterns, 10000);
  ASSERT_EQ(groups.size(), 2);
  EXPECT_TRUE(groups[0].pattern.sees_all());
  EXPECT_THAT(groups[0].layers, ElementsAre(1, 2));
}

TEST(KvCacheTest, LayersOfOneShapeLieSideBySideInTheirGroupsBlocks) {
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 1});
  std::vector<KvGroup> groups = GroupLayers(Windows({8, 0, 8}), 100);
  groups[0].num_blocks = 5;
  groups[1].num_blocks = 3;
  const KvLayerShape layer = {.num_kv_heads = 2, .key_dim = 8, .value_dim = 8};
  const KvCacheShape shape = {
      .layers = {layer, layer, layer}, .block_size = 16, .dtype = kernels::DType::kF32};
  const KvCache cache = *KvCache::Create(*backend, shape, groups);
  EXPECT_EQ(cache.group_of(0), 1);
  EXPECT_EQ(cache.group_of(1), 0);
  EXPECT_EQ(cache.bytes_per_token(), 3 * 2 * 2 * 8 * 4);
  EXPECT_EQ(cache.bytes(), (5 + 3 * 2) * shape.bytes_per_block(0));
  const kernels::CacheView first = cache.layer(0), third = cache.layer(2);
  EXPECT_EQ(first.num_blocks(), 3);
  EXPECT_EQ(cache.layer(1).num_blocks(), 5);
  EXPECT_EQ(third.keys.data<char>() - first.keys.data<char>(), shape.bytes_per_block(0));
  EXPECT_EQ(first.keys.raw(), cache.blocks(1).raw());
  EXPECT_EQ(cache.blocks(1).num_bytes(), 3 * 2 * shape.bytes_per_block(0));
}

// A block has the keys and then the values of each layer, in that layer's sizes. The test writes a
// different number to each element of the views, then checks the group's blocks.
TEST(KvCacheTest, LayersOfOtherShapesLieSideBySideToo) {
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 1});
  std::vector<KvGroup> groups = GroupLayers(Windows({8, 0, 8}), 100);
  groups[0].num_blocks = 2;
  groups[1].num_blocks = 3;
  const KvCacheShape shape = {.layers = {{.num_kv_heads = 2, .key_dim = 24, .value_dim = 8},
                                         {.num_kv_heads = 1, .key_dim = 8, .value_dim = 40},
                                         {.num_kv_heads = 3, .key_dim = 8, .value_dim = 16}},
                              .block_size = 16,
                              .dtype = kernels::DType::kF32};
  const KvCache cache = *KvCache::Create(*backend, shape, groups);
  EXPECT_EQ(cache.bytes_per_token(), 4 * (2 * 32 + 48 + 3 * 24));
  EXPECT_EQ(cache.bytes(), 4 * 16 * (2 * 48 + 3 * (2 * 32 + 3 * 24)));
  float next = 0.0f;
  std::vector<std::vector<float>> want(2);  // by group
  for (const size_t group : {0, 1}) {
    const kernels::TensorView blocks = cache.blocks(group);
    for (int64_t block = 0; block < blocks.dim(0); ++block) {
      for (const int64_t i : groups[group].layers) {
        const kernels::CacheView layer = cache.layer(i);
        ASSERT_EQ(layer.num_blocks(), groups[group].num_blocks);
        EXPECT_EQ(layer.num_kv_heads(), shape.layers[i].num_kv_heads);
        EXPECT_EQ(layer.key_dim(), shape.layers[i].key_dim);
        EXPECT_EQ(layer.value_dim(), shape.layers[i].value_dim);
        for (const kernels::TensorView& part : {layer.keys, layer.values}) {
          const kernels::TensorView rows = part.Rows(block, 1);
          for (int64_t e = 0; e < rows.num_elements(); ++e) {
            rows.data<float>()[e] = ++next;
            want[group].push_back(next);
          }
        }
      }
    }
    ASSERT_EQ(blocks.num_elements(), std::ssize(want[group]));
    EXPECT_THAT(std::span(blocks.data<float>(), want[group].size()),
                ::testing::ElementsAreArray(want[group]));
  }
}

}  // namespace
}  // namespace quire::engine
