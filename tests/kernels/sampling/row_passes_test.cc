#include "kernels/sampling/row_passes.h"

#include <cmath>
#include <limits>
#include <rapidcheck.h>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/sampling/exp.h"
#include "kernels/sampling/row_kernels.h"
#include "tests/kernels/sampling/random_logits.h"

namespace quire::kernels::sampling {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

std::vector<float> Maxima(const std::vector<float>& logits) {
  std::vector<float> maxima(NumRowBlocks(std::ssize(logits)));
  BlockMaxima(logits, maxima);
  return maxima;
}

TEST(ExpTest, IsWithinTwoUnitsInTheLastPlace) {
  for (float x = 0.0f; x > -87.0f; x -= 0.00037f) {
    const double exact = std::exp(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    ASSERT_NEAR(ExpOfNonPositive(x), exact, 2 * ulp) << x;
  }
  EXPECT_EQ(ExpOfNonPositive(0.0f), 1.0f);
  EXPECT_EQ(ExpOfNonPositive(-0.0f), 1.0f);
  EXPECT_EQ(ExpOfNonPositive(-88.0f), 0.0f);
  EXPECT_EQ(ExpOfNonPositive(kMinusInfinity), 0.0f);
  EXPECT_EQ(ExpOfNonPositive(std::numeric_limits<float>::quiet_NaN()), 0.0f);
}

TEST(RowPassesTest, EveryIsaGivesTheNaiveBits) {
  for (const RowKernels& kernels : AvailableRowKernels()) {
    SCOPED_TRACE(kernels.isa);
    EXPECT_TRUE(rc::check([&] {
      const std::vector<float> logits = *AnyLogits(1000);
      std::vector<float> maxima(NumRowBlocks(std::ssize(logits)));
      kernels.maxima(logits, maxima);
      float row_max = kMinusInfinity;
      for (int64_t block = 0; block < std::ssize(maxima); ++block) {
        float max = kMinusInfinity;
        for (int64_t i = block * kRowBlock;
             i < std::min((block + 1) * kRowBlock, std::ssize(logits)); ++i) {
          if (logits[i] > max) max = logits[i];
        }
        RC_ASSERT(maxima[block] == max);
        row_max = std::max(row_max, max);
      }

      const float temperature = *rc::gen::element(0.1f, 0.7f, 1.0f, 3.0f);
      std::vector<float> exponentials(logits.size());
      const double sum = kernels.sum(logits, row_max, temperature, exponentials);
      double naive_sum = 0.0;  // summed backwards, because the order must not change an exact sum
      for (int64_t i = std::ssize(logits) - 1; i >= 0; --i) {
        RC_ASSERT(RoundWeight(exponentials[i]) == Weight(logits[i], row_max, temperature));
        naive_sum += Weight(logits[i], row_max, temperature);
      }
      RC_ASSERT(sum == naive_sum);
    }));

    EXPECT_TRUE(rc::check([&](uint64_t seed, int64_t position, uint32_t low) {
      const NoiseKey key = {.seed = seed, .position = position};
      const int64_t first_id = *rc::gen::inRange(0, 2000) * kRowBlock;
      std::vector<uint32_t> bits(kRowBlock);
      const bool reaches = kernels.noise(key, first_id, low, bits.data());
      bool naive_reaches = false;
      for (int64_t i = 0; i < kRowBlock; ++i) {
        RC_ASSERT(bits[i] == NoiseBits(key, static_cast<int32_t>(first_id + i)));
        naive_reaches = naive_reaches || bits[i] >= low;
      }
      RC_ASSERT(reaches == naive_reaches);
    }));
  }
}

TEST(RowPassesTest, ArgMaxTakesTheLowestOfEquals) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<float> logits = *AnyLogits(1000);
    int32_t naive = -1;
    for (int32_t id = 0; id < std::ssize(logits); ++id) {
      if (logits[id] > (naive < 0 ? kMinusInfinity : logits[naive])) naive = id;
    }
    RC_ASSERT(ArgMax(logits, Maxima(logits)) == naive);
  }));
  const std::vector<float> nothing(300, kMinusInfinity);
  EXPECT_EQ(ArgMax(nothing, Maxima(nothing)), -1);
}

// ArgMaxWithNoise takes shortcuts. The result must be the same as if the noisy scores of all ids
// were computed and compared.
TEST(RowPassesTest, ArgMaxWithNoiseIsThatOfAllIds) {
  EXPECT_TRUE(rc::check([](uint64_t seed, int64_t position) {
    const std::vector<float> logits = *AnyLogits(3000);
    const float temperature = *rc::gen::element(1e-6f, 0.1f, 0.7f, 1.0f, 3.0f, 100.0f);
    const NoiseKey key = {.seed = seed, .position = position};
    const std::vector<float> maxima = Maxima(logits);
    const float max = *std::max_element(maxima.begin(), maxima.end());
    int32_t naive = -1;
    double best = -std::numeric_limits<double>::infinity();
    for (int32_t id = 0; id < std::ssize(logits); ++id) {
      if (!(logits[id] > kMinusInfinity)) continue;
      const double score = NoisyScore(logits[id], max, temperature, NoiseBits(key, id));
      if (score > best) {
        best = score;
        naive = id;
      }
    }
    RC_ASSERT(ArgMaxWithNoise(logits, maxima, temperature, key) == naive);
  }));
}

}  // namespace
}  // namespace quire::kernels::sampling
