#include "kernels/quant/quantize.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/weight_blocks.h"
#include "rapidcheck.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/testing/test_data.h"

namespace quire::kernels {
namespace {

using ::testing::HasSubstr;
using testing::Normal;

constexpr WeightType kBlockTypes[] = {WeightType::kQ4_0, WeightType::kQ5_0, WeightType::kQ8_0,
                                      WeightType::kQ4_K, WeightType::kQ6_K};
constexpr int64_t kCols = 256;

std::vector<std::byte> Bytes(WeightType type, std::span<const float> rows, int64_t cols = kCols) {
  const WeightTypeTraits& traits = Traits(type);
  std::vector<std::byte> bytes(rows.size() / traits.block_elements * traits.block_bytes,
                               // Quantize must overwrite each of these bytes.
                               std::byte{0xa5});
  const absl::Status status = Quantize(type, rows, cols, bytes);
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

std::vector<float> Values(WeightType type, std::span<const std::byte> bytes, int64_t count,
                          int64_t cols = kCols) {
  std::vector<float> values(static_cast<size_t>(count));
  const WeightView view = {.type = type, .rows = count / cols, .cols = cols, .bytes = bytes};
  const absl::Status status = Dequantize(view, 0, view.rows, values);
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

std::vector<float> RoundTrip(WeightType type, std::span<const float> rows, int64_t cols = kCols) {
  return Values(type, Bytes(type, rows, cols), static_cast<int64_t>(rows.size()), cols);
}

double Squares(std::span<const float> x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum;
}

double SquaredDistance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - b[i], 2);
  return sum;
}

float Largest(std::span<const float> x) {
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

// Returns random rows that resemble rows of weights, with a random standard deviation. The weights
// may also be cubed, of one sign or rounded, and one weight may be 100 times as large.
std::vector<float> AnyRows(int64_t rows) {
  std::vector<float> x = Normal(*rc::gen::arbitrary<uint64_t>(), rows * kCols);
  const float deviation = std::ldexp(1.0f, *rc::gen::inRange(-40, 5));
  const int shape = *rc::gen::inRange(0, 5);
  for (float& value : x) {
    if (shape == 1) value = value * value * value;
    if (shape == 2) value = -std::abs(value);
    if (shape == 3) value = std::abs(value);
    if (shape == 4) value = std::round(value);
    value *= deviation;
  }
  if (*rc::gen::arbitrary<bool>()) x[*rc::gen::inRange<size_t>(0, x.size())] *= 100.0f;
  return x;
}

TEST(QuantizeTest, ABlockIsEncodedAsItIsDecoded) {
  for (const WeightType type : kBlockTypes) {
    const testing::TestWeight weight = testing::RandomWeight(type, 1, 2048, 7);
    std::vector<std::byte> encoded(weight.bytes.size());
    for (int64_t b = 0; b < 2048 / kSubBlock; ++b) {
      DecodedBlock block;
      DecodeBlock(type, reinterpret_cast<const uint8_t*>(weight.bytes.data()), b, &block);
      EncodeBlock(type, block, b, reinterpret_cast<uint8_t*>(encoded.data()));
    }
    EXPECT_EQ(encoded, weight.bytes) << Traits(type).name;
  }
}

TEST(QuantizeTest, FloatsRoundToNearestEven) {
  const std::vector<float> x = {1.0f, -0.0f, 1e-42f, 3.1415927f, 1.00390625f, 65504.0f};
  EXPECT_EQ(RoundTrip(WeightType::kF32, x, 3), x);
  const std::vector<float> half = RoundTrip(WeightType::kF16, x, 3);
  const std::vector<float> brain = RoundTrip(WeightType::kBF16, x, 3);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(half[i], F16ToF32(F32ToF16(x[i])));
    EXPECT_EQ(brain[i], Bf16ToF32(F32ToBf16(x[i])));
  }
}

// If each weight of a block is a code times the scale of the block, quantizing reproduces the
// weights exactly. The blocks of Q4_0 and Q5_0 have random codes.
TEST(QuantizeTest, WeightsOfABlockOfOneScaleComeBackExactly) {
  EXPECT_TRUE(rc::check([] {
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    for (const WeightType type : {WeightType::kQ4_0, WeightType::kQ5_0}) {
      const testing::TestWeight weight = testing::RandomWeight(type, 2, kCols, seed);
      RC_ASSERT(RoundTrip(type, weight.values) == weight.values);
    }
    // Quantizing to Q8_0 sets the scale to the largest magnitude in the block divided by 127. So
    // each block here has a code -127 and no code -128.
    testing::TestWeight weight = testing::RandomWeight(WeightType::kQ8_0, 2, kCols, seed);
    for (size_t i = 0; i < weight.bytes.size(); ++i) {
      if (weight.bytes[i] == std::byte{0x80} && i % 34 >= 2) weight.bytes[i] = std::byte{0};
      if (i % 34 == 2 + seed % 32) weight.bytes[i] = std::byte{0x81};  // -127
    }
    const std::vector<float> values = Values(WeightType::kQ8_0, weight.bytes, 2 * kCols);
    RC_ASSERT(RoundTrip(WeightType::kQ8_0, values) == values);
  }));
}

// Quantizing to a K-quant reproduces the weights of a block exactly under two conditions: each
// sub-block contains code 0, and one scale of the block is 63 (Q4_K) or -127 (Q6_K). For Q4_K, one
// minimum must be 63, too.
TEST(QuantizeTest, WeightsOfABlockOfTwoLevelsComeBackExactly) {
  EXPECT_TRUE(rc::check([] {
    std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
    const auto below = [&](uint64_t count) { return static_cast<int>(random() % count); };
    const uint16_t d = F32ToF16(static_cast<float>(1 + below(2047)) * 0x1p-22f);
    const uint16_t m = F32ToF16(F16ToF32(d) * static_cast<float>(1 + below(50)));
    for (const WeightType type : {WeightType::kQ4_K, WeightType::kQ6_K}) {
      const bool four = type == WeightType::kQ4_K;
      std::vector<std::byte> bytes(static_cast<size_t>(Traits(type).block_bytes));
      for (int j = 0; j < 8; ++j) {
        DecodedBlock block = {.d = d, .m = four ? m : uint16_t{0}};
        for (uint8_t& code : block.codes) code = static_cast<uint8_t>(below(four ? 16 : 64));
        block.codes[3] = block.codes[20] = 0;
        for (int& scale : block.scales) scale = four ? below(64) : below(255) - 127;
        if (j == 0) block.scales[0] = four ? 63 : -127;
        if (four) block.scales[1] = block.scales[0];
        block.minimum_scale = j == 0 ? 63 : below(64);
        EncodeBlock(type, block, j, reinterpret_cast<uint8_t*>(bytes.data()));
      }
      const std::vector<float> values = Values(type, bytes, kCols);
      RC_ASSERT(RoundTrip(type, values) == values);
    }
  }));
}

// A weight is off by at most half a step, plus the effect of rounding the scale to f16. Rounding
// changes the scale by at most 2^-11 of its value, which counts for each of up to 127 steps. A
// scale below the normal numbers of f16 is instead rounded up, by at most 2^-24.
TEST(QuantizeTest, AWeightOfQ8IsWithinHalfAStep) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<float> x = AnyRows(2);
    const std::vector<float> got = RoundTrip(WeightType::kQ8_0, x);
    for (size_t b = 0; b < x.size(); b += kSubBlock) {
      const double scale = Largest(std::span(x).subspan(b, kSubBlock)) / 127.0;
      const double bound =
          scale < 0x1p-14 ? (scale + 0x1p-24) * 0.5 : scale * (0.5 + 127 * 0x1p-11);
      for (size_t i = b; i < b + kSubBlock; ++i) {
        RC_ASSERT(std::abs(double{x[i]} - got[i]) <= bound * (1 + 1e-5));
      }
    }
  }));
}

TEST(QuantizeTest, Q8RoundsATieAwayFromZero) {
  std::vector<float> x(kSubBlock, 0.0f), want = x;
  const float weights[] = {-127.0f, 0.5f, -0.5f, 1.5f, -2.5f, std::nextafter(0.5f, 0.0f)};
  const float codes[] = {-127.0f, 1.0f, -1.0f, 2.0f, -3.0f, 0.0f};
  std::copy(std::begin(weights), std::end(weights), x.begin());
  std::copy(std::begin(codes), std::end(codes), want.begin());
  EXPECT_EQ(RoundTrip(WeightType::kQ8_0, x, kSubBlock), want);
}

// The search tries, among others, the scale that puts the extreme weight on the last code. So the
// error with the best scale is no larger, before that scale is rounded to f16. The squared error
// has no slope at the best scale. So the rounding adds, for each code, only the square of the
// rounding error times the code. The sum is at most 2^-22 of the squares that the codes explain, or
// 2^-48 of the squared codes where the scale is below the normal numbers of f16.
TEST(QuantizeTest, ASearchedScaleIsNoWorseThanTheExtremesOwn) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<float> x = AnyRows(2);
    for (const WeightType type : {WeightType::kQ4_0, WeightType::kQ5_0}) {
      const double levels = type == WeightType::kQ4_0 ? 8 : 16;
      const std::vector<float> got = RoundTrip(type, x);
      for (size_t b = 0; b < x.size(); b += kSubBlock) {
        const auto block = std::span(x).subspan(b, kSubBlock);
        const double largest = Largest(block);
        double plain = 0;
        for (const double sign : {-1.0, 1.0}) {
          double error = 0;
          for (const double weight : block) {
            const double step = largest / levels * sign;
            const double code = largest == 0 ? 0 : std::round(weight / step);
            error += std::pow(weight - step * std::clamp(code, -levels, levels - 1), 2);
          }
          plain = sign < 0 ? error : std::min(plain, error);
        }
        const double error = SquaredDistance(block, std::span(got).subspan(b, kSubBlock));
        RC_ASSERT(error <=
                  plain + Squares(block) * 0x1p-20 + kSubBlock * levels * levels * 0x1p-48);
      }
    }
  }));
}

// A step is the largest scale. For Q4_K, it is the range of the widest sub-block, with 0, divided
// by 15. For Q6_K, it is the largest weight divided by 32. A weight is off by at most half a step,
// plus the error of its scale times its code. For Q4_K, the error of its minimum is added. A scale
// or minimum of Q4_K is rounded to a multiple of 1/63 of the largest one, and a scale of Q6_K to a
// multiple of 1/127. So each is off by at most half of that fraction.
TEST(QuantizeTest, TheErrorOfAKQuantIsWithinItsWidestSubBlocks) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<float> x = AnyRows(1);
    double widest = 0;
    for (size_t b = 0; b < x.size(); b += kSubBlock) {
      const auto [low, high] = std::minmax_element(x.begin() + b, x.begin() + b + kSubBlock);
      widest = std::max(widest, double{std::max(*high, 0.0f)} - std::min(*low, 0.0f));
    }
    const double four = widest / 15 * (0.5 + 15 / 126.0 + 15 / 126.0);
    const double six = double{Largest(x)} / 32 * (0.5 + 32 / 254.0);
    const double smallest = 0x1p-24;  // the smallest positive f16
    RC_ASSERT(std::sqrt(SquaredDistance(x, RoundTrip(WeightType::kQ4_K, x)) / kCols) <=
              four + 16 * smallest);
    RC_ASSERT(std::sqrt(SquaredDistance(x, RoundTrip(WeightType::kQ6_K, x)) / kCols) <=
              six + 32 * smallest);
  }));
}

TEST(QuantizeTest, ARowsBytesDependOnThatRowAlone) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<float> x = AnyRows(3);
    for (const WeightType type : kBlockTypes) {
      const std::vector<std::byte> together = Bytes(type, x);
      std::vector<std::byte> apart;
      for (size_t row = 0; row < 3; ++row) {
        const auto bytes = Bytes(type, std::span(x).subspan(row * kCols, kCols));
        apart.insert(apart.end(), bytes.begin(), bytes.end());
      }
      RC_ASSERT(apart == together);
    }
  }));
}

TEST(QuantizeTest, WhatNoScaleReachesBecomesZero) {
  for (const WeightType type : kBlockTypes) {
    SCOPED_TRACE(Traits(type).name);
    const std::vector<float> zeros(kCols), denormals(kCols, -1e-40f), small(kCols, 0x1p-26f);
    for (const auto& x : {zeros, denormals, small}) EXPECT_EQ(RoundTrip(type, x), zeros);
    // Every type can store the smallest positive f16 as a weight.
    const std::vector<float> smallest(kCols, -0x1p-24f);
    EXPECT_EQ(RoundTrip(type, smallest), smallest);
  }
}

TEST(QuantizeTest, ConstantsAndTheLargestWeightsAreKept) {
  const std::map<WeightType, float> largest = {{WeightType::kQ4_0, 65504.0f * 8},
                                               {WeightType::kQ5_0, 65504.0f * 16},
                                               {WeightType::kQ8_0, 65504.0f * 127},
                                               {WeightType::kQ4_K, 65504.0f * 63},
                                               {WeightType::kQ6_K, 65504.0f * 127 * 32}};
  for (const auto& [type, most] : largest) {
    SCOPED_TRACE(Traits(type).name);
    for (const float value : {1.0f, -0.01f, -most, most}) {
      const std::vector<float> x(kCols, value);
      for (const float got : RoundTrip(type, x)) {
        EXPECT_NEAR(got, value, std::abs(value) / 126.0f);  // half a step of a 6-bit scale
      }
      std::vector<float> alone(kCols);
      alone[100] = value;
      const std::vector<float> got = RoundTrip(type, alone);
      for (int64_t i = 0; i < kCols; ++i) {
        EXPECT_NEAR(got[i], alone[i], std::abs(value) / 126.0f) << i;
      }
    }
    std::vector<float> beyond(kCols);
    beyond[3] = std::nextafter(-most, -std::numeric_limits<float>::infinity());
    std::vector<std::byte> out(Bytes(type, std::vector<float>(kCols)).size());
    EXPECT_THAT(std::string(Quantize(type, beyond, kCols, out).message()),
                HasSubstr("want finite values of at most"));
  }
}

TEST(QuantizeTest, ErrorsSayWhatWantedGot) {
  std::vector<std::byte> out(4 * kCols);
  const auto message = [&](WeightType type, std::span<const float> rows, int64_t cols,
                           size_t bytes) {
    return std::string(Quantize(type, rows, cols, std::span(out).first(bytes)).message());
  };
  const std::vector<float> x(kCols);
  EXPECT_THAT(message(WeightType::kQ5_K, x, kCols, 176), HasSubstr("cannot write Q5_K"));
  EXPECT_THAT(message(WeightType::kQ4_K, x, 128, 144), HasSubstr("multiple of 256"));
  EXPECT_THAT(message(WeightType::kQ4_0, x, 0, 144), HasSubstr("multiple of 32"));
  EXPECT_THAT(message(WeightType::kQ4_0, x, 96, 144), HasSubstr("rows of 96 floats"));
  EXPECT_THAT(message(WeightType::kQ4_0, x, 128, 143), HasSubstr("72 bytes for each"));
  for (const WeightType type : testing::kAllWeightTypes) {
    const auto bytes =
        static_cast<size_t>(2 * kCols / Traits(type).block_elements * Traits(type).block_bytes);
    const std::vector<float> zeros(2 * kCols);
    std::vector<std::byte> room(bytes);
    EXPECT_EQ(Quantize(type, zeros, kCols, room).ok(), CanQuantize(type));
    if (!CanQuantize(type)) continue;
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      std::vector<float> rows = zeros;
      rows.back() = bad;
      EXPECT_THAT(std::string(Quantize(type, rows, kCols, room).message()),
                  HasSubstr(absl::StrFormat("for %s, got", Traits(type).name)));
    }
  }
  for (const auto& [type, value] :
       {std::pair(WeightType::kF16, 65520.0f), std::pair(WeightType::kBF16, 3.4e38f)}) {
    const std::vector<float> rows(1, value), below(1, std::nextafter(value, 0.0f));
    EXPECT_THAT(message(type, rows, 1, 2), HasSubstr("row 0: want finite values"));
    if (type == WeightType::kF16) {
      EXPECT_EQ(message(type, below, 1, 2), "");
    }
  }
}

// Returns the weights that make_quantize_goldens.py makes. A weight is the sum of the four 16-bit
// parts of a SplitMix64 number, less the mean of such sums, raised to `power` (1 or 3) and scaled.
std::vector<float> GoldenWeights(uint64_t seed, int power) {
  std::vector<float> weights(64 * kCols);
  for (float& weight : weights) {
    uint64_t n = seed += 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    n ^= n >> 31;
    double bell = -2.0 * 0xffff;
    for (const int shift : {0, 16, 32, 48}) bell += static_cast<double>((n >> shift) & 0xffff);
    weight = static_cast<float>(power == 1 ? bell * 0x1p-20 : bell * bell * bell * 0x1p-52);
  }
  return weights;
}

TEST(QuantizeTest, ErrorsAreSmallerThanLlamaCpps) {
  const std::string path = testing::TestSourcePath("kernels/quant/testdata/quantize_goldens.json");
  const nlohmann::json goldens = *base::ParseJson(testing::ReadFile(path), path);
  // The largest allowed ratio of our error to the error of llama.cpp. The trailing comments are the
  // measured ratios for bell-shaped and for heavy-tailed weights.
  const std::map<WeightType, double> most = {{WeightType::kQ4_0, 0.98},        // 0.944 and 0.963
                                             {WeightType::kQ5_0, 0.98},        // 0.935 and 0.964
                                             {WeightType::kQ8_0, 1.0 + 1e-5},  // 1 for both
                                             {WeightType::kQ4_K, 0.98},        // 0.975 and 0.953
                                             {WeightType::kQ6_K, 0.98}};       // 0.951 and 0.966
  for (const auto& [kind, seed, power] :
       {std::tuple("bell", 1u, 1), std::tuple("heavy-tailed", 2u, 3)}) {
    const std::vector<float> weights = GoldenWeights(seed, power);
    const nlohmann::json& golden = goldens.at(kind);
    for (const auto& [type, ratio] : most) {
      const double error =
          std::sqrt(SquaredDistance(weights, RoundTrip(type, weights)) / Squares(weights));
      const double llama = golden.at("relative_error").at(std::string(Traits(type).name));
      EXPECT_LE(error, llama * ratio) << kind << " " << Traits(type).name;
    }
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (const std::byte byte : Bytes(WeightType::kQ8_0, weights)) {
      hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
    }
    EXPECT_EQ(absl::StrFormat("%016x", hash), golden.at("q8_0_fnv1a")) << kind;
  }
}

}  // namespace
}  // namespace quire::kernels
