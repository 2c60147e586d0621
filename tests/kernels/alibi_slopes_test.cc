#include "kernels/alibi_slopes.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::IsEmpty;

TEST(AlibiSlopesTest, APowerOfTwoIsOneLadder) {
  EXPECT_THAT(AlibiSlopes(8),
              ElementsAre(0.5f, 0.25f, 0.125f, 0.0625f, 0x1p-5f, 0x1p-6f, 0x1p-7f, 0x1p-8f));
  EXPECT_THAT(AlibiSlopes(1), ElementsAre(0x1p-8f));
  EXPECT_THAT(AlibiSlopes(0), IsEmpty());
}

TEST(AlibiSlopesTest, TheOtherHeadsTakeEverySecondRungOfTheNextLadder) {
  EXPECT_THAT(AlibiSlopes(6), ElementsAre(0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f, 0x1p-3f));
  EXPECT_THAT(AlibiSlopes(3), ElementsAre(0x1p-4f, 0x1p-8f, 0x1p-2f));
}

// Checks the rule of arXiv:2108.12409. Let n be the largest power of two that is at most the number
// of heads. The slopes of the first n heads are a geometric sequence whose first element equals its
// ratio. The slopes of the other heads are every second element of the sequence for 2 n heads,
// starting with the first element.
TEST(AlibiSlopesTest, IsThePublishedRuleFor1To128Heads) {
  for (int32_t num_heads = 1; num_heads <= 128; ++num_heads) {
    int32_t n = 1;
    while (2 * n <= num_heads) n *= 2;
    const std::vector<float> got = AlibiSlopes(num_heads);
    ASSERT_EQ(got.size(), static_cast<size_t>(num_heads));
    for (int32_t h = 1; h <= num_heads; ++h) {
      const double exponent = h <= n ? -8.0 * h / n : -4.0 * (2.0 * (h - n) - 1.0) / n;
      EXPECT_EQ(got[static_cast<size_t>(h) - 1], static_cast<float>(std::exp2(exponent)))
          << "head " << h << " of " << num_heads;
    }
  }
}

// Checks the rule of the MPT models. If the number of heads is not a power of two, the rule takes
// the sequence for the next power of two. The heads get the elements at odd indices, counted from
// 0, and after these the elements at even indices, until each head has one.
TEST(AlibiSlopesTest, IsTheRuleOfMptForAnyBiasMax) {
  for (const double bias_max : {4.0, 8.0, 16.0}) {
    for (const int32_t num_heads : {1, 2, 5, 12, 24, 32, 40, 71, 112}) {
      int32_t next = 1;
      while (next < num_heads) next *= 2;
      std::vector<double> ladder;
      for (int32_t i = 1; i <= next; ++i) ladder.push_back(std::exp2(-bias_max * i / next));
      std::vector<double> want;
      if (next == num_heads) {
        want = ladder;
      } else {
        for (int32_t i = 1; i < next; i += 2) want.push_back(ladder[static_cast<size_t>(i)]);
        for (int32_t i = 0; i < next; i += 2) want.push_back(ladder[static_cast<size_t>(i)]);
      }
      const std::vector<float> got = AlibiSlopes(num_heads, bias_max);
      ASSERT_EQ(got.size(), static_cast<size_t>(num_heads));
      for (size_t h = 0; h < got.size(); ++h) {
        EXPECT_THAT(got[h], FloatEq(static_cast<float>(want[h])))
            << "head " << h << " of " << num_heads << ", bias_max " << bias_max;
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels
