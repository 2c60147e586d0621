// Tests products with weights in e4m3 whose tokens are rounded to e4m3, too: the rounding to the
// bit, the products against float64, and the forms of weights.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/cuda/product/cuda_weight_layout.h"
#include "kernels/cuda/product/fp8_product.h"
#include "kernels/cuda/product/fp8_weight.h"
#include "kernels/cuda/product/weight_product.h"
#include "kernels/quant/dequantize.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/exact_product.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/rounding.h"

namespace quire::kernels::cuda {
namespace {

using testing::Decode;
using testing::DeviceArray;
using testing::DeviceFloats;
using testing::Encode;
using testing::Exact;
using ::testing::HasSubstr;
using testing::kAllThreadOrders;
using testing::kE4M3SumRounding;
using testing::MakeDevice;
using testing::Normal;
using testing::RandomWeight;
using testing::TestWeight;
using testing::ThreadOrder;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DType kHalves[] = {DType::kF16, DType::kBF16};

// The number of a code, from its definition: sign, 4 bits of exponent, 3 bits of mantissa.
double NumberOf(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return kNan;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >= 128 ? -magnitude : magnitude;
}

// Returns the code nearest to x, of two the even one. Tries them all.
uint8_t NearestCode(float x) {
  if (!std::isfinite(x)) return std::signbit(x) ? 0xff : 0x7f;
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double now = std::abs(NumberOf(static_cast<uint8_t>(code)) - std::abs(double{x}));
    const double then = std::abs(NumberOf(static_cast<uint8_t>(best)) - std::abs(double{x}));
    if (now < then || (now == then && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

struct Quantized {
  std::vector<uint8_t> codes;  // [tokens, cols]
  std::vector<float> scales;   // [cols / group, tokens]
};

// Rounds tokens whose scales are each for `group` columns.
Quantized QuantizedOnHost(const std::vector<float>& x, int64_t tokens, int64_t cols,
                          int64_t group) {
  Quantized result{std::vector<uint8_t>(x.size()), std::vector<float>(x.size() / group)};
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t first = 0; first < cols; first += group) {
      const size_t at = static_cast<size_t>(token * cols + first);
      float largest = 0x1p-100f;
      for (int64_t i = 0; i < group; ++i) {
        const float magnitude = std::abs(x[at + i]);
        largest = std::isfinite(magnitude) ? std::max(largest, magnitude) : kNan;
        if (std::isnan(largest)) break;
      }
      result.scales[static_cast<size_t>(first / group * tokens + token)] = largest / 448.0f;
      for (int64_t i = 0; i < group; ++i) {
        const float product = x[at + i] * (448.0f / largest);
        result.codes[at + i] = NearestCode(product);
      }
    }
  }
  return result;
}

// A NaN may have either sign.
std::vector<uint8_t> WithOneNan(std::vector<uint8_t> codes) {
  for (uint8_t& code : codes) code = (code | 0x80) == 0xff ? 0xff : code;
  return codes;
}

class QuantizeTokensTest : public ::testing::TestWithParam<ThreadOrder> {};
INSTANTIATE_TEST_SUITE_P(Orders, QuantizeTokensTest, ::testing::ValuesIn(kAllThreadOrders));

TEST_P(QuantizeTokensTest, CodesAndScalesHaveTheBitsOfTheDefinition) {
  const std::unique_ptr<Device> device = MakeDevice(GetParam());
  constexpr int64_t kTokens = 9;
  for (const DType dtype : kHalves) {
    // A part of a warp, several warps, more than one vector of each thread; with and without a warp
    // of which only half has columns.
    for (const int64_t cols : {64, 128, 384, 2048, 2176}) {
      SCOPED_TRACE(::testing::Message() << Name(dtype) << " " << cols);
      std::vector<float> x = Normal(static_cast<uint64_t>(cols), kTokens * cols);
      const auto row = [&](int64_t token) { return std::span(x).subspan(token * cols, cols); };
      for (float& value : row(1)) value = 0.0f;
      row(1)[3] = -0.0f;
      row(2)[cols - 1] = kNan;
      row(3)[0] = -kInfinity;
      for (float& value : row(4)) value *= 1e-39f;  // subnormal numbers of bf16, zeros of f16
      row(5)[cols - 2] = -60000.0f;                 // the largest, and the others are far below
      for (float& value : row(6)) value *= dtype == DType::kBF16 ? 1e37f : 1e4f;
      // The scale is 1, and numbers are halfway between two codes.
      for (int64_t i = 0; i < cols; ++i) {
        row(7)[i] = std::ldexp(static_cast<float>(17 + 2 * (i % 8)), static_cast<int>(i % 19) - 14);
        if (i % 128 == 5) row(7)[i] = i % 3 == 0 ? -448.0f : 448.0f;
      }
      DeviceFloats input(*device, dtype, x);
      for (const int64_t group : {cols, int64_t{128}}) {
        if (cols % group != 0) continue;
        const Quantized want = QuantizedOnHost(input.values, kTokens, cols, group);
        DeviceArray<uint8_t> codes(*device, kTokens * cols);
        DeviceArray<float> scales(*device, std::ssize(want.scales));
        const bool of_blocks = group == 128 && cols != 128;
        ASSERT_TRUE(QuantizeTokens(*device, dtype,
                                   of_blocks ? GemmScales::kBlocks : GemmScales::kRows,
                                   {.codes = reinterpret_cast<E4M3*>(codes.data()),
                                    .scales = scales.data(),
                                    .input = input.View({kTokens, cols}).raw(),
                                    .cols = cols,
                                    .stride = cols,
                                    .num_tokens = kTokens,
                                    .scale_stride = kTokens})
                        .ok());
        EXPECT_EQ(WithOneNan(codes.ToHost()), WithOneNan(want.codes));
        const std::vector<float> got = scales.ToHost();
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(got[i] == want.scales[i] ||
                      (std::isnan(got[i]) && std::isnan(want.scales[i])))
              << i << ": " << got[i] << " " << want.scales[i];
        }
      }
    }
  }
}

TEST_P(QuantizeTokensTest, ReadsRowsThatAreApart) {
  const std::unique_ptr<Device> device = MakeDevice(GetParam());
  constexpr int64_t kTokens = 3, kCols = 128, kStride = 192;
  DeviceFloats input(*device, DType::kBF16, Normal(5, kTokens * kStride));
  std::vector<float> rows;
  for (int64_t token = 0; token < kTokens; ++token) {
    const auto first = input.values.begin() + token * kStride;
    rows.insert(rows.end(), first, first + kCols);
  }
  const Quantized want = QuantizedOnHost(rows, kTokens, kCols, kCols);
  for (const GemmScales scales : {GemmScales::kRows, GemmScales::kBlocks}) {
    DeviceArray<uint8_t> codes(*device, kTokens * kCols);
    DeviceArray<float> of_tokens(*device, kTokens);
    ASSERT_TRUE(QuantizeTokens(*device, DType::kBF16, scales,
                               {.codes = reinterpret_cast<E4M3*>(codes.data()),
                                .scales = of_tokens.data(),
                                .input = input.View({kTokens, kStride}).raw(),
                                .cols = kCols,
                                .stride = kStride,
                                .num_tokens = kTokens,
                                .scale_stride = kTokens})
                    .ok());
    EXPECT_EQ(codes.ToHost(), want.codes);
    EXPECT_EQ(of_tokens.ToHost(), want.scales);
  }
}

// Returns a random weight whose scales are each for `rows_of_scale` x `cols_of_scale` weights.
TestWeight ScaledWeight(int64_t rows, int64_t cols, int64_t rows_of_scale, int64_t cols_of_scale,
                        uint64_t seed = 1) {
  TestWeight weight = RandomWeight(WeightType::kF8E4M3Scaled, rows, cols, seed);
  const int64_t blocks = cols / kScaledBlock;
  for (int64_t i = 0; i < rows * blocks; ++i) {
    const int64_t row = i / blocks / rows_of_scale, col = i % blocks * kScaledBlock / cols_of_scale;
    const float scale = 0.001f * static_cast<float>(1 + (7 * row + 3 * col + 11) % 97);
    std::memcpy(weight.bytes.data() + i * kScaledBlockBytes, &scale, sizeof(scale));
  }
  EXPECT_TRUE(Dequantize(weight.view, 0, rows, weight.values).ok());
  return weight;
}

TEST(Fp8WeightTest, FormFollowsFromScalesAndShape) {
  const auto form = [](int64_t rows, int64_t cols, int64_t rows_of_scale, int64_t cols_of_scale) {
    return Fp8ScalesOf(ScaledWeight(rows, cols, rows_of_scale, cols_of_scale).view);
  };
  EXPECT_EQ(form(48, 192, 48, 192), GemmScales::kRows);      // one for all
  EXPECT_EQ(form(48, 192, 1, 192), GemmScales::kRows);       // of rows
  EXPECT_EQ(form(256, 384, 128, 128), GemmScales::kBlocks);  // of blocks
  EXPECT_EQ(form(256, 128, 128, 128), GemmScales::kRows);    // of blocks as wide as the rows
  EXPECT_EQ(form(40, 192, 1, 192), GemmScales::kNone);       // 40 rows
  EXPECT_EQ(form(192, 384, 128, 128), GemmScales::kNone);    // half a block of rows
  EXPECT_EQ(form(256, 320, 128, 128), GemmScales::kNone);    // half a block of columns
  EXPECT_EQ(form(256, 384, 64, 128), GemmScales::kNone);     // other blocks
  EXPECT_EQ(form(256, 384, 128, 64), GemmScales::kNone);
  EXPECT_EQ(Fp8ScalesOf(RandomWeight(WeightType::kQ8_0, 48, 192, 1).view), GemmScales::kNone);
}

TEST(Fp8WeightTest, ViewsOfOneFormBecomeOnePart) {
  const TestWeight rows = ScaledWeight(48, 256, 1, 256), blocks = ScaledWeight(128, 256, 128, 128),
                   plain = RandomWeight(WeightType::kBF16, 16, 256, 1),
                   packed = ScaledWeight(40, 256, 1, 256);
  const std::vector<WeightView> views = {rows.view,   rows.view,  blocks.view, blocks.view,
                                         packed.view, plain.view, rows.view};
  const CudaWeightLayout layout = LayOut(views, DType::kBF16, /*packs=*/true, /*keeps_e4m3=*/true);
  ASSERT_EQ(layout.parts.size(), 5);
  const auto& parts = layout.parts;
  EXPECT_EQ(parts[0].scales, GemmScales::kRows);
  EXPECT_EQ(parts[0].num_rows, 96);
  EXPECT_EQ(parts[0].scales_offset, 96 * 256);
  EXPECT_EQ(parts[1].scales, GemmScales::kBlocks);
  EXPECT_EQ(parts[1].first_row, 96);
  EXPECT_EQ(parts[1].num_rows, 256);
  // The scales of 96 rows come before, in 512 bytes.
  EXPECT_EQ(parts[1].offset, 96 * 256 + 512);
  EXPECT_EQ(parts[2].packed, WeightType::kF8E4M3Scaled);
  EXPECT_EQ(parts[3].scales, GemmScales::kNone);
  EXPECT_FALSE(parts[3].packed.has_value());
  EXPECT_EQ(layout.scales_offsets[1] - layout.scales_offsets[0], 48 * 4);
  // A row of two scales of blocks takes the place of four.
  EXPECT_EQ(layout.scales_offsets[3] - layout.scales_offsets[2], 16);
  EXPECT_EQ(layout.bytes, parts[4].scales_offset + 48 * 4);
}

// The products of a part begin at a multiple of 16 bytes only after a whole number of 8 rows.
TEST(Fp8WeightTest, ViewsBesideOneOfOtherRowsStayPacked) {
  const TestWeight rows = ScaledWeight(48, 256, 1, 256), odd = ScaledWeight(20, 256, 1, 256);
  for (const auto& views : {std::vector{rows.view, odd.view}, std::vector{odd.view, rows.view}}) {
    const CudaWeightLayout layout =
        LayOut(views, DType::kBF16, /*packs=*/true, /*keeps_e4m3=*/true);
    EXPECT_EQ(layout.scales, std::vector(2, GemmScales::kNone));
    EXPECT_EQ(layout.is_packed, std::vector(2, true));
  }
}

// A backend that multiplies in e4m3, and counts what it enqueues.
class Fp8ProductTest : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  class CountingProducts final : public ForwardingDevice {
   public:
    CountingProducts(std::unique_ptr<Device> device, Fp8ProductTest& test)
        : ForwardingDevice(std::move(device)), test_(test) {}
    absl::Status Gemm(const GemmArgs& args) override {
      if (test_.refuses_(args)) return absl::UnimplementedError("no algorithm");
      if (args.type == DType::kF8E4M3) ++test_.num_fp8_gemms_;
      return ForwardingDevice::Gemm(args);
    }
    absl::Status LaunchKernel(const KernelLaunch& launch) override {
      ++test_.num_launches_;
      return ForwardingDevice::LaunchKernel(launch);
    }

   private:
    Fp8ProductTest& test_;
  };

  std::unique_ptr<Backend> MakeBackend(DType dtype, int64_t scratch_bytes = 1 << 20,
                                       bool fp8_products = true) {
    std::unique_ptr<Device> device = MakeDevice(GetParam());
    device_ = device.get();
    return *CreateCudaBackend(std::make_unique<CountingProducts>(std::move(device), *this),
                              {.activation_dtype = dtype,
                               .linear_scratch_bytes = scratch_bytes,
                               .fp8_products = fp8_products});
  }

  std::vector<float> Multiply(Backend& backend, const PreparedWeight& weight,
                              const std::vector<float>& x, DType out_dtype, LinearArgs args = {}) {
    const int64_t tokens = static_cast<int64_t>(x.size()) / weight.cols();
    DeviceFloats input(*device_, backend.activation_dtype(), x);
    DeviceFloats out(*device_, out_dtype, tokens * weight.rows());
    args.out = out.View({tokens, weight.rows()});
    args.input = input.View({tokens, weight.cols()});
    args.weight = &weight;
    const absl::Status status = backend.Linear(args);
    EXPECT_TRUE(status.ok()) << status;
    return out.ToHost();
  }

  Device* device_ = nullptr;  // of the last backend
  int num_fp8_gemms_ = 0, num_launches_ = 0;
  std::function<bool(const GemmArgs&)> refuses_ = [](const GemmArgs&) { return false; };
};
INSTANTIATE_TEST_SUITE_P(Orders, Fp8ProductTest, ::testing::ValuesIn(kAllThreadOrders));

// Returns a product of tokens in float64, whose operands are the rounded ones, with the bounds of
// its errors. Two numbers of e4m3 have an exact product. A sum of n of them, in any order and in
// parts, is off by at most n roundings of the sum of the magnitudes; scales add three roundings for
// each part.
std::vector<Exact> ExactProduct(const std::vector<float>& x, int64_t tokens,
                                const std::vector<const TestWeight*>& weights, int64_t group) {
  const int64_t cols = weights[0]->view.cols;
  const Quantized tokens8 = QuantizedOnHost(x, tokens, cols, group);
  std::vector<Exact> all;
  for (int64_t token = 0; token < tokens; ++token) {
    for (const TestWeight* weight : weights) {
      for (int64_t row = 0; row < weight->view.rows; ++row) {
        double sum = 0.0, magnitude = 0.0;
        for (int64_t k = 0; k < cols; ++k) {
          const auto* const block =
              weight->bytes.data() + (row * cols + k) / kScaledBlock * kScaledBlockBytes;
          float scale;
          std::memcpy(&scale, block, sizeof(scale));
          const auto code = static_cast<uint8_t>(block[4 + k % kScaledBlock]);
          const double a = NumberOf(tokens8.codes[static_cast<size_t>(token * cols + k)]) *
                           tokens8.scales[static_cast<size_t>(k / group * tokens + token)];
          const double product = a * NumberOf(code) * scale;
          sum += product;
          magnitude += std::abs(product);
        }
        all.push_back({sum, static_cast<double>(cols + 3) * kE4M3SumRounding * magnitude});
      }
    }
  }
  return all;
}

// Compares a product of tokens, with what it was added to, with float64.
void ExpectProduct(const std::vector<float>& got, const std::vector<float>& x, int64_t tokens,
                   const std::vector<const TestWeight*>& weights, int64_t group,
                   DType dtype = DType::kF32, const std::vector<float>& addends = {}) {
  const std::vector<Exact> product = ExactProduct(x, tokens, weights, group);
  ASSERT_EQ(got.size(), product.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = product[i].value + (addends.empty() ? 0.0f : addends[i]);
    const double rounding = testing::Rounding(dtype) * (std::abs(want) + product[i].bound);
    ASSERT_NEAR(got[i], want, product[i].bound + rounding) << "element " << i;
  }
}

TEST_P(Fp8ProductTest, AgreesWithDoublesOfTheRoundedTokens) {
  struct Case {
    int64_t cols, group;
    std::vector<TestWeight> weights;
  };
  std::vector<Case> cases;
  // One scale each, as q, k and v of a checkpoint with scales of tensors; of rows; of blocks, with
  // a row of three scales.
  cases.push_back({192, 192, {}});
  cases.back().weights = {ScaledWeight(48, 192, 48, 192, 1), ScaledWeight(16, 192, 1, 192, 2)};
  cases.push_back({384, 128, {}});
  cases.back().weights = {ScaledWeight(128, 384, 128, 128, 3), ScaledWeight(256, 384, 128, 128, 4)};
  for (const Case& c : cases) {
    std::vector<WeightView> views;
    std::vector<const TestWeight*> weights;
    for (const TestWeight& weight : c.weights) {
      views.push_back({weight.view.type, weight.view.rows, c.cols, weight.bytes});
      weights.push_back(&weight);
    }
    const DType dtype = c.group == 128 ? DType::kBF16 : DType::kF16;
    const auto backend = MakeBackend(dtype);
    const auto weight = *backend->PrepareWeight(views);
    for (const int64_t tokens : {1, 5, 33}) {
      SCOPED_TRACE(::testing::Message() << c.cols << " columns, " << tokens << " tokens");
      const std::vector<float> x =
          Decode(dtype, Encode(dtype, Normal(static_cast<uint64_t>(tokens), tokens * c.cols)));
      num_fp8_gemms_ = num_launches_ = 0;
      const std::vector<float> got = Multiply(*backend, *weight, x, DType::kF32);
      // With scales of blocks, the tokens after the last four have a product of their own.
      const int products = c.group == 128 && tokens > 4 ? 2 : 1;
      EXPECT_EQ(num_fp8_gemms_, products);
      EXPECT_EQ(num_launches_, products);
      ExpectProduct(got, x, tokens, weights, c.group);
    }
  }
}

// Rows of all forms in one weight: scales of rows, of blocks, and some that no product takes.
TEST_P(Fp8ProductTest, PartsOfEveryFormShareAWeight) {
  constexpr int64_t kCols = 256, kTokens = 6;
  const TestWeight rows = ScaledWeight(32, kCols, 1, kCols),
                   blocks = ScaledWeight(128, kCols, 128, 128),
                   packed = ScaledWeight(40, kCols, 1, kCols);
  const auto backend = MakeBackend(DType::kBF16);
  const auto weight = *backend->PrepareWeight(std::vector{rows.view, packed.view, blocks.view});
  const std::vector<float> x =
      Decode(DType::kBF16, Encode(DType::kBF16, Normal(3, kTokens * kCols)));
  num_fp8_gemms_ = 0;
  const std::vector<float> got = Multiply(*backend, *weight, x, DType::kF32);
  EXPECT_EQ(num_fp8_gemms_, 3);  // of rows; of blocks with four tokens, and with two
  EXPECT_EQ(backend->info().num_e4m3_products, 2);
  EXPECT_EQ(backend->info().num_other_e4m3, 1);
  EXPECT_EQ(backend->info().numerics, "cuda-4-fp8");
  const auto columns = [&](int64_t first, int64_t count) {
    std::vector<float> part;
    for (int64_t token = 0; token < kTokens; ++token) {
      const auto at = got.begin() + token * weight->rows() + first;
      part.insert(part.end(), at, at + count);
    }
    return part;
  };
  ExpectProduct(columns(0, 32), x, kTokens, {&rows}, kCols);
  ExpectProduct(columns(72, 128), x, kTokens, {&blocks}, 128);
  const auto alone = *backend->PrepareWeight(std::vector{packed.view});
  EXPECT_EQ(columns(32, 40), Multiply(*backend, *alone, x, DType::kF32));
}

// Whatever the product that the device refuses.
TEST_P(Fp8ProductTest, AWeightOfWhichTheDeviceRefusesAProductStaysPacked) {
  constexpr int64_t kCols = 256, kTokens = 2;
  const TestWeight rows = ScaledWeight(16, kCols, 1, kCols),
                   others = ScaledWeight(32, kCols, 1, kCols),
                   blocks = ScaledWeight(128, kCols, 128, 128);
  const std::vector<float> x = Normal(3, kTokens * kCols);
  const auto refuses = [](int64_t m, int64_t n, DType output_type, bool accumulate) {
    return [=](const GemmArgs& args) {
      return args.type == DType::kF8E4M3 && args.m == m && args.n == n &&
             args.output_type == output_type && args.accumulate == accumulate;
    };
  };
  for (const auto& [part, refused] : {std::pair(&rows, refuses(1, 16, DType::kBF16, false)),
                                      std::pair(&rows, refuses(2, 16, DType::kBF16, true)),
                                      std::pair(&rows, refuses(7, 16, DType::kF32, false)),
                                      std::pair(&rows, refuses(1024, 16, DType::kF32, true)),
                                      std::pair(&blocks, refuses(4, 128, DType::kBF16, false)),
                                      std::pair(&blocks, refuses(40, 128, DType::kF32, false))}) {
    const auto exact = MakeBackend(DType::kBF16, 1 << 20, /*fp8_products=*/false);
    const std::vector<float> want =
        Multiply(*exact, **exact->PrepareWeight(std::vector{part->view}), x, DType::kF32);
    refuses_ = refused;
    const auto backend = MakeBackend(DType::kBF16);
    const auto other = *backend->PrepareWeight(std::vector{others.view});
    const auto both = *backend->PrepareWeight(std::vector{others.view, blocks.view});
    EXPECT_TRUE(static_cast<const CudaWeight&>(*other).has_scales());
    EXPECT_EQ(backend->info().num_refused_e4m3, part == &blocks ? 2 : 0);
    const auto weight = *backend->PrepareWeight(std::vector{part->view});
    EXPECT_FALSE(static_cast<const CudaWeight&>(*weight).has_scales());
    EXPECT_TRUE(static_cast<const CudaWeight&>(*weight).is_packed());
    EXPECT_EQ(backend->info().num_e4m3_products, part == &blocks ? 1 : 3);
    EXPECT_EQ(backend->info().num_other_e4m3, part == &blocks ? 3 : 1);
    EXPECT_EQ(backend->info().num_refused_e4m3, part == &blocks ? 3 : 1);
    EXPECT_EQ(Multiply(*backend, *weight, x, DType::kF32), want);
  }
}

TEST_P(Fp8ProductTest, ExpertsStayPacked) {
  const TestWeight expert = ScaledWeight(32, 192, 1, 192);
  const auto backend = MakeBackend(DType::kBF16);
  const auto weight = *backend->PrepareMoeWeight(std::vector{expert.view, expert.view});
  const auto& of_device = static_cast<const CudaWeight&>(*weight);
  EXPECT_TRUE(of_device.is_packed());
  EXPECT_FALSE(of_device.has_scales());
  EXPECT_EQ(backend->info().num_e4m3_products, 0);
  EXPECT_EQ(backend->info().num_other_e4m3, 2);
}

TEST_P(Fp8ProductTest, AddsToTheResidualAndTakesTheOtherEpilogues) {
  constexpr int64_t kCols = 256, kRows = 128, kTokens = 3;
  for (const bool of_blocks : {false, true}) {
    const TestWeight part =
        of_blocks ? ScaledWeight(kRows, kCols, 128, 128) : ScaledWeight(kRows, kCols, 1, kCols);
    const auto backend = MakeBackend(DType::kBF16);
    const auto weight = *backend->PrepareWeight(std::vector{part.view});
    const std::vector<float> x =
        Decode(DType::kBF16, Encode(DType::kBF16, Normal(7, kTokens * kCols)));
    const int64_t group = of_blocks ? 128 : kCols;
    DeviceFloats input(*device_, DType::kBF16, x),
        out(*device_, DType::kBF16, Normal(8, kTokens * kRows));
    const std::vector<float> before = out.values;
    num_launches_ = 0;
    ASSERT_TRUE(backend
                    ->Linear({.out = out.View({kTokens, kRows}),
                              .input = input.View({kTokens, kCols}),
                              .weight = weight.get(),
                              .residual = out.View({kTokens, kRows})})
                    .ok());
    EXPECT_EQ(num_launches_, 1);  // the GEMM adds
    ExpectProduct(out.ToHost(), x, kTokens, {&part}, group, DType::kBF16, before);
    DeviceFloats bias(*device_, DType::kF32, Normal(9, kRows));
    LinearArgs with_bias;
    with_bias.bias = bias.View({kRows});
    std::vector<float> biases;
    for (int64_t i = 0; i < kTokens; ++i) {
      biases.insert(biases.end(), bias.values.begin(), bias.values.end());
    }
    ExpectProduct(Multiply(*backend, *weight, x, DType::kF32, with_bias), x, kTokens, {&part},
                  group, DType::kF32, biases);
  }
}

TEST_P(Fp8ProductTest, TokensThatDoNotFitTheScratchMemoryAreTakenInTurns) {
  constexpr int64_t kTokens = 37;
  for (const bool of_blocks : {false, true}) {
    const TestWeight part =
        of_blocks ? ScaledWeight(128, 256, 128, 128) : ScaledWeight(16, 256, 1, 256);
    const std::vector<float> x =
        Decode(DType::kBF16, Encode(DType::kBF16, Normal(11, kTokens * 256)));
    // A quarter is for tokens in e4m3: 256 bytes that align, and 15 tokens of 264 bytes. With
    // scales of blocks, 12 tokens, what is left to a multiple of 256, and 4 rows of 128 float32.
    const auto small =
        MakeBackend(DType::kBF16, 4 * (of_blocks ? 3584 + 4 * 128 * 4 : 256 + 15 * 264));
    const auto weight = *small->PrepareWeight(std::vector{part.view});
    num_fp8_gemms_ = 0;
    const std::vector<float> got = Multiply(*small, *weight, x, DType::kBF16);
    EXPECT_EQ(num_fp8_gemms_, of_blocks ? 4 : 3);
    ExpectProduct(got, x, kTokens, {&part}, of_blocks ? 128 : 256, DType::kBF16);
  }
}

TEST_P(Fp8ProductTest, ATokenThatIsNotFiniteGivesNaN) {
  for (const bool of_blocks : {false, true}) {
    const TestWeight part =
        of_blocks ? ScaledWeight(128, 256, 128, 128) : ScaledWeight(16, 256, 1, 256);
    const auto backend = MakeBackend(DType::kBF16);
    const auto weight = *backend->PrepareWeight(std::vector{part.view});
    std::vector<float> x = Normal(13, 3 * 256);
    x[5] = kInfinity;
    x[2 * 256 + 200] = kNan;
    const std::vector<float> got = Multiply(*backend, *weight, x, DType::kF32);
    const auto rows = static_cast<size_t>(weight->rows());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::isnan(got[i]), i / rows != 1) << i;
    }
  }
}

TEST_P(Fp8ProductTest, EmbedReadsTheSameNumbers) {
  for (const bool of_blocks : {false, true}) {
    const TestWeight part =
        of_blocks ? ScaledWeight(256, 384, 128, 128) : ScaledWeight(32, 192, 1, 192);
    const int64_t cols = part.view.cols, rows = part.view.rows;
    for (const DType dtype : kHalves) {
      const auto backend = MakeBackend(dtype);
      const auto weight = *backend->PrepareWeight(std::vector{part.view, part.view});
      const std::vector<int32_t> ids = {static_cast<int32_t>(rows - 1), 0,
                                        static_cast<int32_t>(rows + 3), -1};
      DeviceArray<int32_t> tokens(*device_, ids);
      DeviceFloats out(*device_, dtype, 4 * cols);
      ASSERT_TRUE(backend
                      ->Embed({.out = out.View({4, cols}),
                               .token_ids = TensorView(tokens.data(), DType::kI32, {4}),
                               .weight = weight.get(),
                               .scale = 3.0f})
                      .ok());
      const std::vector<float> got = out.ToHost();
      for (int64_t i = 0; i < 4 * cols; ++i) {
        const int64_t id = ids[static_cast<size_t>(i / cols)];
        if (id < 0) {
          EXPECT_TRUE(std::isnan(got[static_cast<size_t>(i)]));
          continue;
        }
        const float number = 3.0f * part.values[static_cast<size_t>(id % rows * cols + i % cols)];
        ASSERT_EQ(got[static_cast<size_t>(i)], Decode(dtype, Encode(dtype, {number}))[0]) << i;
      }
    }
  }
}

TEST(Fp8ProductLimitsTest, GemmRefusesWhatCublasWould) {
  GemmArgs args = {.d = reinterpret_cast<void*>(256),
                   .a = reinterpret_cast<void*>(256),
                   .b = reinterpret_cast<void*>(256),
                   .m = 4,
                   .n = 256,
                   .k = 128,
                   .lda = 128,
                   .ldb = 128,
                   .ldd = 256,
                   .type = DType::kF8E4M3,
                   .scales = GemmScales::kBlocks,
                   .a_scales = reinterpret_cast<float*>(256),
                   .b_scales = reinterpret_cast<float*>(256)};
  EXPECT_TRUE(Validate(args).ok());
  const auto error = [&](auto edit) {
    GemmArgs edited = args;
    edit(edited);
    return std::string(Validate(edited).message());
  };
  EXPECT_THAT(error([](GemmArgs& a) { a.n = 144; }), HasSubstr("multiples of 128"));
  EXPECT_THAT(error([](GemmArgs& a) { a.k = 64; }), HasSubstr("multiples of 128"));
  EXPECT_EQ(error([](GemmArgs& a) { a.m = 3; }),
            "gemm: want m in multiples of 4 with scales of blocks, got 3");
  args.scales = GemmScales::kRows;
  args.m = 3;
  EXPECT_EQ(error([](GemmArgs& a) { a.n = 144; }), "");
  EXPECT_THAT(error([](GemmArgs& a) { a.n = 136; }), HasSubstr("multiples of 16"));
  EXPECT_THAT(error([](GemmArgs& a) { a.k = 72; }), HasSubstr("multiples of 16"));
  EXPECT_THAT(error([](GemmArgs& a) { a.lda = 136; }), HasSubstr("rows at multiples of 16 bytes"));
  EXPECT_THAT(error([](GemmArgs& a) { a.ldd = 260; }), HasSubstr("rows at multiples of 16 bytes"));
  EXPECT_THAT(error([](GemmArgs& a) { a.a = reinterpret_cast<void*>(264); }),
              HasSubstr("at multiples of 16 bytes"));
  EXPECT_THAT(error([](GemmArgs& a) { a.lda = 112; }), HasSubstr("as far apart as they are long"));
  EXPECT_THAT(error([](GemmArgs& a) { a.b_scales = nullptr; }), HasSubstr("want scales"));
  EXPECT_THAT(error([](GemmArgs& a) { a.scales = GemmScales::kNone; }), HasSubstr("want scales"));
  EXPECT_THAT(error([](GemmArgs& a) { a.output_type = DType::kF8E4M3; }), HasSubstr("output"));
}

TEST(Fp8ProductLimitsTest, ProductsThatCannotRunAreRefusedBeforeTheyStart) {
  const std::unique_ptr<Device> device = MakeDevice();
  const CudaWeight weight(*device->Allocate(4096), DType::kBF16, 64,
                          {{.num_rows = 16, .scales = GemmScales::kRows, .scales_offset = 1024}});
  const DeviceBuffer scratch = *device->Allocate(4096);
  const auto error = [&](const GemmArgs& args, const ProductScratch& of) {
    return std::string(CheckWeightProduct(*device, weight, args, 1, of).message());
  };
  const GemmArgs args = {.a = scratch.data(), .lda = 64, .ldd = 16};
  EXPECT_EQ(error(args, {.memory = scratch.data(), .bytes = 256 + 68}), "");
  EXPECT_EQ(
      error(args, {.memory = scratch.data(), .bytes = 256 + 67}),
      "weight: want a token in 323 bytes of scratch memory, got 64 cols and 16 of the output");
  EXPECT_EQ(error(args, {}),
            "weight: want a token in 0 bytes of scratch memory, got 64 cols and 16 of the output");
  EXPECT_THAT(error(args, {.memory = scratch.data(), .bytes = 1 << 20, .rows = GemmRows::kFixed}),
              HasSubstr("no part in e4m3"));
  GemmArgs apart = args;
  apart.a = static_cast<char*>(scratch.data()) + 8;
  EXPECT_THAT(error(apart, {.memory = scratch.data(), .bytes = 4096}),
              HasSubstr("input: want memory at a multiple of 16 bytes"));
}

// 4 tokens of 132 bytes, to a multiple of 256, and 4 rows of 128 float32.
TEST(Fp8ProductLimitsTest, ScalesOfBlocksNeedRoomForFourTokensAndTheirProducts) {
  const std::unique_ptr<Device> device = MakeDevice();
  const CudaWeight weight(
      *device->Allocate(1 << 15), DType::kBF16, 128,
      {{.num_rows = 128, .scales = GemmScales::kBlocks, .scales_offset = 128 * 128}});
  EXPECT_EQ(QuantizedTokensIn(1024 + 2048, weight, 128), 4);
  EXPECT_EQ(QuantizedTokensIn(1023 + 2048, weight, 128), 0);
  EXPECT_EQ(QuantizedTokensIn(0, weight, 128), 0);
}

}  // namespace
}  // namespace quire::kernels::cuda
