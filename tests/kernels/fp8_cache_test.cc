// Tests that every ISA path of the CPU backend writes and reads an e4m3 cache as
// kernels/quant/float8.h does.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/ops/shift_keys.h"
#include "tests/kernels/cache_testing.h"

namespace quire::kernels {
namespace {

using ::testing::HasSubstr;
using testing::HeadShape;
using testing::IsaPaths;
using testing::MakeBackend;
using testing::PoisonedCache;
using testing::SequenceData;

constexpr int64_t kHeadDim = 24;  // a whole vector, and half of one

// Returns all numbers of e4m3, the numbers in the middle of two neighbours, their own neighbours
// in float32, and numbers that e4m3 does not have.
std::vector<float> Numbers() {
  using Limits = std::numeric_limits<float>;
  std::vector<float> numbers = {
      Limits::infinity(), Limits::quiet_NaN(), Limits::max(), 449.0f, 1e9f,
      Limits::min(),      Limits::denorm_min()};
  for (int code = 0; code < 0x7f; ++code) {
    const float x = E4M3ToF32(static_cast<uint8_t>(code));
    if (code == 0x7e) break;  // in the middle of 448 and NaN is no number
    const float middle = (x + E4M3ToF32(static_cast<uint8_t>(code + 1))) / 2;
    numbers.insert(numbers.end(), {x, middle, std::nextafter(middle, 0.0f),
                                   std::nextafter(middle, Limits::max())});
  }
  const size_t count = numbers.size();
  for (size_t i = 0; i < count; ++i) numbers.push_back(-numbers[i]);
  while (numbers.size() % kHeadDim != 0) numbers.push_back(1.0f);
  return numbers;
}

// Returns the code of the number of e4m3 that is nearest to x / scale, by a search among all
// numbers in float64. In the middle of two numbers it is that of the even code.
uint8_t NearestCode(float x, float scale) {
  if (!std::isfinite(x)) return static_cast<uint8_t>(std::signbit(x) ? 0xff : 0x7f);
  // The quotient is rounded to float32 before it is rounded to e4m3.
  const double exact = std::abs(double{x} / scale);
  const double quotient = exact > std::numeric_limits<float>::max()
                              ? exact
                              : static_cast<double>(static_cast<float>(exact));
  int nearest = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const auto error = [&](int of) {
      return std::abs(quotient - E4M3ToF32(static_cast<uint8_t>(of)));
    };
    if (error(code) < error(nearest) || (error(code) == error(nearest) && code % 2 == 0)) {
      nearest = code;
    }
  }
  return static_cast<uint8_t>(nearest | (std::signbit(x) ? 0x80 : 0));
}

// One token has the key 0, so the weight of its value is 1, and attention returns the value.
TEST(Fp8CacheTest, EveryPathWritesAndReadsEveryNumberWithAnyScale) {
  const std::vector<float> all = Numbers();
  int num_nan = 0, num_saturated = 0;
  constexpr float kScales[] = {1.0f, 0.037f, 3.0f, CacheScales::kSmallest, CacheScales::kLargest};
  for (const float scale : kScales) {
    std::vector<float> numbers = all;
    for (float& x : numbers) x *= scale;
    // The quotients are too large for float32 with a small scale.
    std::fill_n(numbers.end() - 2, 1, std::numeric_limits<float>::max());
    std::fill_n(numbers.end() - 1, 1, -std::numeric_limits<float>::max());
    const HeadShape shape{.num_heads = 1,
                          .num_kv_heads = 1,
                          .head_dim = kHeadDim,
                          .dtype = DType::kF8E4M3,
                          .scales = {.k = 5.0f, .v = scale}};
    for (const std::string& isa : IsaPaths()) {
      SCOPED_TRACE(::testing::Message() << isa << " scale " << scale);
      const auto backend = MakeBackend(isa, 1);
      for (size_t first = 0; first < numbers.size(); first += kHeadDim) {
        const SequenceData token{
            .query = std::vector<float>(kHeadDim, 1.0f),
            .key = std::vector<float>(kHeadDim, 0.0f),
            .value = {numbers.begin() + static_cast<int64_t>(first),
                      numbers.begin() + static_cast<int64_t>(first) + kHeadDim},
            .blocks = {0},
            .length = 1};
        PoisonedCache cache(*backend, shape, 1);
        cache.Write(token, 0, 1);
        const std::vector<float> out = cache.Attend({{&token, 0, 1}}, {.scale = 1.0f});
        for (size_t d = 0; d < kHeadDim; ++d) {
          const float x = token.value[d];
          const uint8_t code = NearestCode(x, scale);
          ASSERT_EQ(cache.view().values.data<uint8_t>()[d], code) << x;
          ASSERT_EQ(F32ToE4M3(DividedForE4M3(x, scale)), code) << x;
          num_saturated += std::isfinite(x) && !std::isfinite(x / scale) ? 1 : 0;
          if ((code & 0x7f) == 0x7f) {
            ASSERT_TRUE(std::isnan(out[d])) << x;
            ++num_nan;
          } else {
            ASSERT_EQ(out[d], E4M3ToF32(code) * scale) << x;
          }
        }
      }
    }
  }
  const int64_t num_paths = std::ssize(IsaPaths());
  EXPECT_GT(num_nan, 4 * num_paths * std::ssize(kScales) - 1);
  EXPECT_GT(num_saturated, num_paths);
}

// The keys are as far apart as the scale makes them.
TEST(Fp8CacheTest, KeysAreDividedByTheirScaleAndNotByThatOfValues) {
  for (const float scale : {0.037f, 3.0f, CacheScales::kSmallest, CacheScales::kLargest}) {
    const HeadShape shape{.num_heads = 1,
                          .num_kv_heads = 1,
                          .head_dim = kHeadDim,
                          .dtype = DType::kF8E4M3,
                          .scales = {.k = scale, .v = 5.0f}};
    SequenceData token = testing::RandomSequence(shape, 1, 1, {0});
    for (float& x : token.key) x *= scale;
    token.key[0] = std::numeric_limits<float>::max();
    for (const std::string& isa : IsaPaths()) {
      const auto backend = MakeBackend(isa, 1);
      PoisonedCache cache(*backend, shape, 1);
      cache.Write(token, 0, 1);
      for (size_t d = 0; d < kHeadDim; ++d) {
        ASSERT_EQ(cache.view().keys.data<uint8_t>()[16 * d], NearestCode(token.key[d], scale))
            << isa << " scale " << scale << " element " << d;
      }
    }
  }
}

// A rotation is linear, so the stored numbers turn as the keys do.
TEST(Fp8CacheTest, ShiftedKeysDoNotDependOnTheScaleAndSaturate) {
  constexpr float kHalf = 0.70710678f;
  testing::Owned<float> table = testing::F32({2, 1, 2}, {1.0f, 0.0f, kHalf, kHalf});
  const std::vector<KeyShift> shifts = {{.block = 0, .distance = 1}};
  HeadShape shape{.num_heads = 1, .num_kv_heads = 1, .head_dim = 8, .dtype = DType::kF8E4M3};
  SequenceData token = testing::RandomSequence(shape, 1, 1, {0});
  token.key[0] = token.key[1] = 448.0f;  // become 634 and 0
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa, 1);
    std::vector<uint8_t> unscaled;
    for (const float scale : {1.0f, 0.25f, 64.0f}) {
      shape.scales = {.k = scale, .v = scale};
      SequenceData scaled = token;
      for (float& x : scaled.key) x *= scale;
      for (float& x : scaled.value) x *= scale;
      PoisonedCache cache(*backend, shape, 1);
      cache.Write(scaled, 0, 1);
      ASSERT_TRUE(backend
                      ->ShiftKeys({.kv_cache = cache.view(),
                                   .rope_table = table.view,
                                   .rope_layout = RopeLayout::kInterleaved,
                                   .shifts = shifts})
                      .ok());
      const auto* const bytes = cache.view().keys.data<uint8_t>();
      EXPECT_EQ(bytes[0], F32ToE4M3(448.0f)) << isa;
      EXPECT_EQ(bytes[16] & 0x7f, 0) << isa;
      const std::vector<uint8_t> all(bytes, bytes + cache.bytes());
      if (unscaled.empty()) unscaled = all;
      EXPECT_EQ(all, unscaled) << isa << " scale " << scale;
    }
  }
}

TEST(Fp8CacheTest, ScalesAreInRangeAndOfFp8Alone) {
  using Limits = std::numeric_limits<float>;
  const auto backend = MakeBackend("auto", 1);
  for (const DType dtype : {DType::kF8E4M3, DType::kF16}) {
    const HeadShape shape{.num_heads = 1, .num_kv_heads = 1, .dtype = dtype};
    PoisonedCache cache(*backend, shape, 1);
    const auto message = [&](CacheScales scales) {
      CacheView view = cache.view();
      view.scales = scales;
      return std::string(Validate(ShiftKeysArgs{.kv_cache = view}).message());
    };
    const std::string good = "rope_table: want";  // the next check
    EXPECT_THAT(message({}), HasSubstr(good));
    for (const float scale : {0.5f, CacheScales::kSmallest, CacheScales::kLargest}) {
      const std::string want =
          dtype == DType::kF8E4M3 ? good : "scales of kv_cache: want 1 with f16, got ";
      EXPECT_THAT(message({.k = scale}), HasSubstr(want)) << scale;
      EXPECT_THAT(message({.v = scale}), HasSubstr(want)) << scale;
    }
    for (const float scale : {0.0f, -1.0f, std::nextafter(CacheScales::kSmallest, 0.0f),
                              std::nextafter(CacheScales::kLargest, Limits::max()),
                              Limits::infinity(), Limits::quiet_NaN()}) {
      EXPECT_THAT(message({.k = scale}), HasSubstr("scales of kv_cache: want ")) << scale;
      EXPECT_THAT(message({.v = scale}), HasSubstr("scales of kv_cache: want ")) << scale;
    }
  }
}

}  // namespace
}  // namespace quire::kernels
