#include "kernels/sampling/gumbel.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <rapidcheck.h>
#include <set>

#include "gtest/gtest.h"

namespace quire::kernels::sampling {
namespace {

constexpr uint32_t kLargestBits = std::numeric_limits<uint32_t>::max();

TEST(GumbelTest, StaysBelowItsBound) {
  EXPECT_TRUE(std::isfinite(GumbelFromBits(0)));
  EXPECT_NEAR(GumbelFromBits(0), -std::log(33 * std::log(2.0)), 1e-9);
  EXPECT_NEAR(GumbelFromBits(kLargestBits), 33 * std::log(2.0), 1e-6);
  EXPECT_LT(GumbelFromBits(kLargestBits), kMaxGumbel);
}

// A draw skips an id whose noise bits are below BitsThatMayReach(value), where `value` is the
// Gumbel noise that the id needs to win. So the noise of such bits must be below `value`.
TEST(GumbelTest, BitsThatMayReachNeverPassesAWinnerOver) {
  const auto below_falls_short = [](double gumbel) {
    const uint32_t low = BitsThatMayReach(gumbel);
    return low == 0 || GumbelFromBits(low - 1) < gumbel;
  };
  for (double gumbel = -5.0; gumbel < kMaxGumbel; gumbel += 0.001) {
    ASSERT_TRUE(below_falls_short(gumbel)) << gumbel;
  }
  EXPECT_TRUE(rc::check([&](uint32_t bits) {
    RC_ASSERT(BitsThatMayReach(GumbelFromBits(bits)) <= bits);
    RC_ASSERT(below_falls_short(GumbelFromBits(bits)));
  }));
}

TEST(GumbelTest, BitsThatMayReachIsOfUse) {
  // Gumbel noise reaches 15 with a probability of about e^-15. So about 2^32 e^-15 = 1314 of 2^32
  // values reach it.
  EXPECT_GT(BitsThatMayReach(15.0), kLargestBits - 1600);
  EXPECT_EQ(BitsThatMayReach(-10.0), 0u);
  EXPECT_EQ(BitsThatMayReach(-std::numeric_limits<double>::infinity()), 0u);
}

TEST(GumbelTest, NoiseDependsOnEveryPartOfItsKey) {
  std::set<uint32_t> seen;
  int count = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
    for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{1} << 32}) {
      for (const int32_t id : {0, 1, 2, 3, 4, 7, 49151}) {
        seen.insert(NoiseBits({.seed = seed, .position = position}, id));
        ++count;
      }
    }
  }
  EXPECT_EQ(static_cast<int>(seen.size()), count);
}

TEST(GumbelTest, HasTheGumbelDistributionsMean) {
  constexpr int kDraws = 100000;
  double sum = 0.0;
  for (int32_t id = 0; id < kDraws; ++id) sum += GumbelFromBits(NoiseBits({.seed = 7}, id));
  // The standard deviation of a value is pi / sqrt(6). The bound is five standard deviations of the
  // mean.
  EXPECT_NEAR(sum / kDraws, 0.5772156649, 5 * M_PI / std::sqrt(6.0 * kDraws));
}

}  // namespace
}  // namespace quire::kernels::sampling
