#include "engine/kv/block_table.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Tests tables with blocks of 4 tokens, in a step that is being built.
class BlockTableTest : public ::testing::Test {
 protected:
  BlockTableTest() { store_.BeginStep(1); }

  bool TryGrow(BlockTable& table, int64_t first_write, int64_t num_tokens) {
    return table.TryGrow(store_, 4, first_write, num_tokens, &copy_, &copied_);
  }

  BlockStore store_{/*num_blocks=*/4, /*block_size=*/4};
  kernels::BlockCopy copy_;
  bool copied_ = false;
};

TEST_F(BlockTableTest, GrowsByWholeBlocksAndAllOrNothing) {
  BlockTable table;
  EXPECT_TRUE(TryGrow(table, 0, 9));
  EXPECT_THAT(table.blocks(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(TryGrow(table, 9, 12)) << "there is room in its last block";
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(table.NumBlocksToGrow(store_, 4, 12, 17), 2);
  EXPECT_FALSE(TryGrow(table, 12, 17));
  EXPECT_THAT(table.blocks(), ElementsAre(0, 1, 2));
  EXPECT_FALSE(copied_);
}

TEST_F(BlockTableTest, WhoWritesASharedTailFirstGoesOnWithACopy) {
  BlockTable parent, child;
  ASSERT_TRUE(TryGrow(parent, 0, 6));
  child.ForkFrom(parent, store_, 4, 6);
  EXPECT_THAT(child.blocks(), ElementsAre(0, 1));
  EXPECT_EQ(child.NumBlocksToGrow(store_, 4, 6, 7), 1);
  ASSERT_TRUE(TryGrow(child, 6, 7));
  EXPECT_TRUE(copied_);
  EXPECT_EQ(copy_.source, 1);
  EXPECT_EQ(copy_.destination, 2);
  EXPECT_THAT(child.blocks(), ElementsAre(0, 2));
  ASSERT_TRUE(TryGrow(parent, 6, 7));
  EXPECT_FALSE(copied_) << "the last of its tables writes in place";
}

TEST_F(BlockTableTest, AForkAtABlocksBorderCopiesNothing) {
  BlockTable parent, child;
  ASSERT_TRUE(TryGrow(parent, 0, 8));
  child.ForkFrom(parent, store_, 4, 4);
  EXPECT_THAT(child.blocks(), ElementsAre(0));
  ASSERT_TRUE(TryGrow(child, 4, 5));
  EXPECT_FALSE(copied_);
  EXPECT_THAT(child.blocks(), ElementsAre(0, 2));
}

TEST_F(BlockTableTest, ClearGivesBackFromTheTail) {
  BlockTable table;
  ASSERT_TRUE(TryGrow(table, 0, 8));
  table.Clear(store_, /*in_flight=*/false);
  EXPECT_THAT(table.blocks(), IsEmpty());
  EXPECT_EQ(store_.Take(), 0) << "freed last";
}

}  // namespace
}  // namespace quire::engine
