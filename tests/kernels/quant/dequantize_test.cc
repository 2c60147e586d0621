#include "kernels/quant/dequantize.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "kernels/quant/float16.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/testing/test_data.h"

namespace quire::kernels {
namespace {

using testing::F32;
using ::testing::HasSubstr;
using testing::I32;
using testing::Owned;

struct Golden {
  WeightView view;
  std::string bytes;
  std::vector<float> values;
};

std::vector<Golden> ReadGoldens() {
  const std::string path =
      testing::TestSourcePath("kernels/quant/testdata/dequantize_goldens.json");
  const nlohmann::json file = *base::ParseJson(testing::ReadFile(path), path);
  std::vector<Golden> goldens;
  for (const nlohmann::json& entry : file.at("cases")) {
    Golden golden;
    std::string values;
    EXPECT_TRUE(absl::Base64Unescape(entry.at("bytes").get<std::string>(), &golden.bytes));
    EXPECT_TRUE(absl::Base64Unescape(entry.at("values").get<std::string>(), &values));
    golden.values.resize(values.size() / sizeof(float));
    std::memcpy(golden.values.data(), values.data(), values.size());
    for (const WeightType type : testing::kAllWeightTypes) {
      if (Traits(type).name == entry.at("type").get<std::string>()) golden.view.type = type;
    }
    golden.view.rows = entry.at("rows");
    golden.view.cols = entry.at("cols");
    goldens.push_back(std::move(golden));
  }
  for (Golden& golden : goldens) golden.view.bytes = std::as_bytes(std::span(golden.bytes));
  return goldens;
}

TEST(DequantizeTest, EveryTypeEqualsGgufToTheBit) {
  int types = 0;
  for (const Golden& golden : ReadGoldens()) {
    SCOPED_TRACE(std::string(Traits(golden.view.type).name));
    std::vector<float> values(golden.values.size());
    ASSERT_TRUE(Dequantize(golden.view, 0, golden.view.rows, values).ok());
    EXPECT_EQ(values, golden.values);
    std::vector<float> second(static_cast<size_t>(golden.view.cols));
    ASSERT_TRUE(Dequantize(golden.view, 1, 1, second).ok());
    EXPECT_EQ(second,
              std::vector<float>(golden.values.begin() + golden.view.cols, golden.values.end()));
    ++types;
  }
  EXPECT_EQ(types, 10);
}

TEST(DequantizeTest, EmbeddingRowsOfThePackedFormAreTheSame) {
  for (const Golden& golden : ReadGoldens()) {
    SCOPED_TRACE(std::string(Traits(golden.view.type).name));
    for (const bool pack : {true, false}) {
      const auto backend = testing::MakeBackend("auto", 2, pack);
      const auto weight = *backend->PrepareWeight({&golden.view, 1});
      Owned<float> out = F32({3, golden.view.cols});
      Owned<int32_t> ids = I32({3}, {1, 0, 1});
      ASSERT_TRUE(
          backend->Embed({.out = out.view, .token_ids = ids.view, .weight = weight.get()}).ok());
      for (int64_t i = 0; i < 3 * golden.view.cols; ++i) {
        const int64_t row = ids.values[i / golden.view.cols];
        ASSERT_EQ(out.values[i], golden.values[row * golden.view.cols + i % golden.view.cols]);
      }
    }
  }
}

TEST(DequantizeTest, ErrorsSayWhatWantedGot) {
  const std::vector<std::byte> bytes(36);
  std::vector<float> out(64);
  const auto message = [&](const WeightView& view, int64_t first, int64_t count) {
    return std::string(Dequantize(view, first, count, out).message());
  };
  EXPECT_THAT(message({WeightType::kQ4_0, 2, 33, bytes}, 0, 2), HasSubstr("multiple of 32"));
  EXPECT_THAT(message({WeightType::kQ4_0, 3, 32, bytes}, 0, 2), HasSubstr("want 54 bytes"));
  EXPECT_THAT(message({WeightType::kQ4_0, 2, 32, bytes}, 1, 2), HasSubstr("[0, 2), got [1, +2)"));
  EXPECT_THAT(message({WeightType::kQ4_0, 2, 32, bytes}, 0, 1), HasSubstr("want 32 floats"));
}

// Returns the value of an f16 number, by the definition of the format.
double HalfValue(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  double value;
  if (exponent == 31) {
    value = mantissa != 0 ? std::nan("") : std::numeric_limits<double>::infinity();
  } else {
    value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  }
  return (half & 0x8000) != 0 ? -value : value;
}

TEST(Float16Test, EveryHalfWidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = F16ToF32(half);
    if (std::isnan(HalfValue(half))) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(value))));
      continue;
    }
    ASSERT_EQ(value, HalfValue(half)) << bits;
    ASSERT_EQ(F32ToF16(value), half);
  }
}

TEST(Float16Test, NarrowingRoundsToNearestEven) {
  // Tests numbers just below, at and just above the middle between every two neighbouring f16
  // numbers.
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
    const auto middle = static_cast<float>((HalfValue(low) + HalfValue(high)) / 2);
    ASSERT_EQ(F32ToF16(middle), bits % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.0f)), low) << bits;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 1e9f)), high) << bits;
  }
  EXPECT_EQ(F32ToF16(65519.0f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToBf16(1.00390625f), 0x3f80);  // 1 + 2^-8 is a tie and rounds to even
  EXPECT_EQ(F32ToBf16(1.01171875f), 0x3f82);  // 1 + 3 * 2^-8 is a tie and rounds to even
  EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace quire::kernels
