#include "engine/model/layers/rewritten_matrix.h"

#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/quant/float16.h"

namespace quire::engine {
namespace {

using kernels::WeightType;
using kernels::WeightView;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::vector<T> As(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

template <typename T>
WeightView View(WeightType type, int64_t rows, int64_t cols, const std::vector<T>& values) {
  return {type, rows, cols, std::as_bytes(std::span(values))};
}

TEST(RewrittenMatrixTest, TransposesEveryWidth) {
  const std::vector<float> wide = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(As<float>(*Transposed(View(WeightType::kF32, 2, 3, wide))),
              ElementsAre(1, 4, 2, 5, 3, 6));
  const std::vector<uint16_t> narrow = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(As<uint16_t>(*Transposed(View(WeightType::kBF16, 2, 3, narrow))),
              ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST(RewrittenMatrixTest, TransposesEachOfSeveralAndPartsRowsThatTakeTurns) {
  // Two matrices of [2, 3]. In the last case, rows 0 and 2 of each transpose come before row 1.
  const std::vector<uint16_t> values = {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16};
  const WeightView both = View(WeightType::kBF16, 4, 3, values);
  EXPECT_THAT(As<uint16_t>(*Transposed(both, 2)),
              ElementsAre(1, 4, 2, 5, 3, 6, 11, 14, 12, 15, 13, 16));
  EXPECT_THAT(As<uint16_t>(*Transposed(both, 2, true)),
              ElementsAre(1, 4, 3, 6, 2, 5, 11, 14, 13, 16, 12, 15));
}

TEST(RewrittenMatrixTest, PartsRowsThatTakeTurns) {
  const std::vector<uint16_t> values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_THAT(As<uint16_t>(EvenRowsFirst(View(WeightType::kBF16, 5, 2, values))),
              ElementsAre(1, 2, 5, 6, 9, 10, 3, 4, 7, 8));
}

TEST(RewrittenMatrixTest, DividesRowsByTheirLength) {
  const std::vector<float> wide = {3, -4, 0, 0};
  EXPECT_THAT(As<float>(*WithUnitRows(View(WeightType::kF32, 2, 2, wide))),
              ElementsAre(0.6f, -0.8f, 0, 0));
  const std::vector<uint16_t> bf16 = {kernels::F32ToBf16(3), kernels::F32ToBf16(4)};
  EXPECT_THAT(As<uint16_t>(*WithUnitRows(View(WeightType::kBF16, 1, 2, bf16))),
              ElementsAre(kernels::F32ToBf16(0.6f), kernels::F32ToBf16(0.8f)));
  const std::vector<uint16_t> f16 = {kernels::F32ToF16(3), kernels::F32ToF16(4)};
  EXPECT_THAT(As<uint16_t>(*WithUnitRows(View(WeightType::kF16, 1, 2, f16))),
              ElementsAre(kernels::F32ToF16(0.6f), kernels::F32ToF16(0.8f)));
}

TEST(RewrittenMatrixTest, RefusesBlocks) {
  const std::vector<std::byte> block(34);
  const WeightView quantised = {WeightType::kQ8_0, 1, 32, block};
  for (const auto& rewritten : {Transposed(quantised), WithUnitRows(quantised)}) {
    EXPECT_THAT(std::string(rewritten.status().message()),
                HasSubstr("want F32, F16 or BF16, got Q8_0"));
  }
}

}  // namespace
}  // namespace quire::engine
