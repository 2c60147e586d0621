#include "base/edit_distance.h"

#include "gtest/gtest.h"

namespace quire::base {
namespace {

TEST(EditDistanceTest, CountsInsertedDroppedAndReplaced) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("max_num_seq", "max_num_seqs"), 1u);
  EXPECT_EQ(EditDistance("modle", "model"), 2u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("sitting", "kitten"), 3u);
}

}  // namespace
}  // namespace quire::base
