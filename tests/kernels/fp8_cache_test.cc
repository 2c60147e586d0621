// Tests that every ISA path of the CPU backend writes and reads an e4m3 cache as
// kernels/quant/float8.h does.

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/cache_testing.h"

namespace quire::kernels {
namespace {

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

// One token has the key 0, so the weight of its value is 1, and attention returns the value.
TEST(Fp8CacheTest, EveryPathWritesAndReadsEveryNumber) {
  const HeadShape shape{
      .num_heads = 1, .num_kv_heads = 1, .head_dim = kHeadDim, .dtype = DType::kF8E4M3};
  const std::vector<float> numbers = Numbers();
  int num_nan = 0;
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa, 1);
    for (size_t first = 0; first < numbers.size(); first += kHeadDim) {
      const SequenceData token{.query = std::vector<float>(kHeadDim, 1.0f),
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
        const uint8_t code = F32ToE4M3(x);
        ASSERT_EQ(cache.view().values.data<uint8_t>()[d], code) << isa << " " << x;
        if ((code & 0x7f) == 0x7f) {
          ASSERT_TRUE(std::isnan(out[d])) << isa << " " << x;
          ++num_nan;
        } else {
          ASSERT_EQ(out[d], E4M3ToF32(code)) << isa << " " << x;
        }
      }
    }
  }
  EXPECT_EQ(num_nan, 4 * std::ssize(IsaPaths()));
}

}  // namespace
}  // namespace quire::kernels
