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

TEST(EditDistanceTest, TheNearestNameIsATypoAwayAndTheFirstOfEquals) {
  constexpr std::string_view kNames[] = {"generate", "score", "store", "n"};
  EXPECT_EQ(NearestName("generte", kNames), "generate");
  EXPECT_EQ(NearestName("gneerate", kNames), "generate");
  EXPECT_EQ(NearestName("stare", kNames), "store");
  EXPECT_EQ(NearestName("snore", kNames), "score");
  // For five letters, two edits are a typo and three are not. Changing every letter of a name is
  // never a typo.
  EXPECT_EQ(NearestName("sceru", kNames), "score");
  EXPECT_EQ(NearestName("sueru", kNames), "");
  // For longer names too, three edits are another word.
  EXPECT_EQ(NearestName("generatxx", kNames), "generate");
  EXPECT_EQ(NearestName("generatxxx", kNames), "");
  EXPECT_EQ(NearestName("m", kNames), "");
  EXPECT_EQ(NearestName("", kNames), "");
  EXPECT_EQ(NearestName("score", {}), "");
}

}  // namespace
}  // namespace quire::base
