#include "kernels/ops/attention_pattern.h"

#include <algorithm>

#include "gtest/gtest.h"

#include "kernels/ops/paged_attention.h"
#include "tests/testing/seen_keys.h"

namespace quire::kernels {
namespace {

using testing::Sees;

TEST(AttentionPatternTest, EveryAnswerFollowsFromTheDefinitionOfTheRule) {
  for (const AttentionPattern& pattern :
       {AttentionPattern(), AttentionPattern::Window(1), AttentionPattern::Window(2),
        AttentionPattern::Window(7), AttentionPattern::Window(64), AttentionPattern::Chunk(1),
        AttentionPattern::Chunk(2), AttentionPattern::Chunk(7), AttentionPattern::Chunk(64)}) {
    int64_t most = 0;
    for (int64_t query = 0; query < 200; ++query) {
      const int64_t first = pattern.FirstKey(query);
      for (int64_t key = 0; key < 200; ++key) {
        ASSERT_EQ(Sees(pattern, query, key), first <= key && key <= query)
            << ToString(pattern) << ", query " << query << ", key " << key;
      }
      most = std::max(most, query - first + 1);
      ASSERT_EQ(pattern.MostKeys(query + 1), most) << ToString(pattern) << ", query " << query;
      if (query > 0) ASSERT_GE(first, pattern.FirstKey(query - 1)) << ToString(pattern);
    }
  }
}

TEST(AttentionPatternTest, AWindowOrChunkOfNoTokensIsNone) {
  EXPECT_TRUE(AttentionPattern::Window(0).sees_all());
  EXPECT_EQ(AttentionPattern::Window(0), AttentionPattern());
  EXPECT_TRUE(AttentionPattern::Chunk(0).sees_all());
  EXPECT_EQ(AttentionPattern::Chunk(0), AttentionPattern());
}

}  // namespace
}  // namespace quire::kernels
