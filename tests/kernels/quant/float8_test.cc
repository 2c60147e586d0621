// Tests the conversions of e4m3 against its definition.

#include "kernels/quant/float8.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace quire::kernels {
namespace {

constexpr int kNanCode = 0x7f;

// Returns the number of a code of at most 0x7e, by the definition: 2^(exponent - 7) * (1 +
// mantissa / 8), or 2^-6 * mantissa / 8 if the exponent is 0.
double NumberOf(int code) {
  const int exponent = code / 8, mantissa = code % 8;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// Returns the code of the number nearest to the magnitude of `x`, the even code of two.
int NearestCode(double x) {
  int nearest = 0;
  for (int code = 1; code < kNanCode; ++code) {
    const double better =
        std::abs(std::abs(x) - NumberOf(nearest)) - std::abs(std::abs(x) - NumberOf(code));
    if (better > 0 || (better == 0 && code % 2 == 0)) nearest = code;
  }
  return nearest;
}

void ExpectNearest(float x) {
  const int sign = std::signbit(x) ? 0x80 : 0;
  ASSERT_EQ(F32ToE4M3(x), sign | NearestCode(x)) << x;
}

TEST(E4M3Test, EveryCodeHasTheNumberOfItsDefinition) {
  for (int code = 0; code < 0x80; ++code) {
    const float positive = E4M3ToF32(static_cast<uint8_t>(code));
    const float negative = E4M3ToF32(static_cast<uint8_t>(code | 0x80));
    EXPECT_FALSE(std::signbit(positive)) << code;
    EXPECT_TRUE(std::signbit(negative)) << code;
    if (code == kNanCode) {
      EXPECT_TRUE(std::isnan(positive) && std::isnan(negative));
      continue;
    }
    EXPECT_EQ(positive, NumberOf(code)) << code;
    EXPECT_EQ(negative, -NumberOf(code)) << code;
    EXPECT_EQ(F32ToE4M3(positive), code);
    EXPECT_EQ(F32ToE4M3(negative), code | 0x80);
  }
  EXPECT_EQ(NumberOf(0x7e), kLargestE4M3);
}

TEST(E4M3Test, RoundsToTheNearestNumberAndTiesToEven) {
  for (int code = 0; code + 1 < kNanCode; ++code) {
    const auto middle = static_cast<float>((NumberOf(code) + NumberOf(code + 1)) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      ExpectNearest(x);
      ExpectNearest(-x);
    }
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(x)) ExpectNearest(x);
    // Most floats are far from e4m3's range, so as many are drawn within it.
    ExpectNearest(std::ldexp(1.0f + static_cast<float>(random() % 1024) / 1024,
                             static_cast<int>(random() % 22) - 12));
  }
}

TEST(E4M3Test, SaturatesAndKeepsNan) {
  using Limits = std::numeric_limits<float>;
  for (const float x : {448.0f, 464.0f, 465.0f, 480.0f, 1e4f, Limits::max()}) {
    EXPECT_EQ(F32ToE4M3(x), 0x7e) << x;
    EXPECT_EQ(F32ToE4M3(-x), 0xfe) << x;
  }
  for (const float x : {Limits::infinity(), Limits::quiet_NaN()}) {
    EXPECT_EQ(F32ToE4M3(x), 0x7f) << x;
    EXPECT_EQ(F32ToE4M3(-x), 0xff) << x;
  }
}

}  // namespace
}  // namespace quire::kernels
