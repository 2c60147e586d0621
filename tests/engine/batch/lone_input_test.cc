#include "engine/batch/lone_input.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;

TEST(LoneInputTest, ALaterChunkReadsTheBlocksBeforeIt) {
  const std::vector<int32_t> tokens = {7, 8, 9};
  const ModelInput input = MakeLoneInput(tokens, 15, 2, 16);
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
  EXPECT_TRUE(input.copies.empty());
}

}  // namespace
}  // namespace quire::engine
