// Tests Linear and Embed with packed weights: the GEMMs for few tokens and for up to 64, and
// dequantised rows for more.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/math.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/cuda_weight_layout.h"
#include "kernels/cuda/product/pack_weight.h"
#include "kernels/cuda/product/packed_choice.h"
#include "kernels/cuda/product/packed_weight.h"
#include "kernels/cuda/product/weight_product.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/cuda/small_integers.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::Decode;
using testing::DeviceArray;
using testing::DeviceFloats;
using testing::Encode;
using testing::kAllThreadOrders;
using testing::MakeDevice;
using testing::Normal;
using testing::RandomWeight;
using testing::TestWeight;
using testing::ThreadOrder;

constexpr WeightType kPackedTypes[] = {
    WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0,
    WeightType::kQ5_1, WeightType::kQ8_0, WeightType::kQ4_K,
    WeightType::kQ5_K, WeightType::kQ6_K, WeightType::kF8E4M3Scaled};
constexpr DType kHalves[] = {DType::kF16, DType::kBF16};

// Columns that leave half of the last tile empty, where the type allows it, and more tiles than
// the block has warps.
int64_t ColsOf(WeightType type) {
  const int block = Traits(type).block_elements;
  return block == 256 ? 768 : block == 64 ? 640 : 608;
}

class PackedGemmTest : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  // Stacks `parts` into one weight, packed where their type allows it.
  CudaWeight Prepare(const std::vector<const TestWeight*>& parts, DType dtype, bool packs = true) {
    std::vector<WeightView> views;
    for (const TestWeight* part : parts) views.push_back(part->view);
    const CudaWeightLayout layout = LayOut(views, dtype, packs);
    std::vector<std::byte> bytes(static_cast<size_t>(layout.bytes));
    for (size_t i = 0; i < views.size(); ++i) {
      std::byte* to = bytes.data() + layout.offsets[i];
      if (layout.is_packed[i]) {
        const int64_t group_bytes = PackedGroupBytes(views[i].type, views[i].cols);
        for (int64_t g = 0; g < NumGroups(views[i].rows); ++g) {
          PackGroup(views[i], g, to + g * group_bytes);
        }
      } else {
        const std::vector<uint8_t> values = Encode(dtype, parts[i]->values);
        std::memcpy(to, values.data(), values.size());
      }
    }
    DeviceBuffer memory = *device_->Allocate(layout.bytes);
    EXPECT_TRUE(device_->CopyToDevice(memory.data(), bytes.data(), layout.bytes).ok());
    EXPECT_TRUE(device_->Synchronize().ok());
    return CudaWeight(std::move(memory), dtype, views[0].cols, layout.parts);
  }

  std::vector<float> Multiply(const CudaWeight& weight, DeviceFloats& input, int64_t num_tokens,
                              DType out_dtype, const DeviceBuffer& scratch, LinearArgs args = {}) {
    DeviceFloats out(*device_, out_dtype, num_tokens * weight.rows());
    args.out = out.View({num_tokens, weight.rows()});
    args.input = input.View({num_tokens, weight.cols()});
    args.weight = &weight;
    const absl::Status status = Linear(*device_, args, scratch);
    EXPECT_TRUE(status.ok()) << status;
    return out.ToHost();
  }

  std::unique_ptr<Device> device_ = MakeDevice(GetParam());
  const DeviceBuffer scratch_ = *device_->Allocate(1 << 20);
};
INSTANTIATE_TEST_SUITE_P(Orders, PackedGemmTest, ::testing::ValuesIn(kAllThreadOrders));

// Returns a weight of small integers times powers of two: every scale, and every minimum, is one.
TestWeight ExactWeight(WeightType type, int64_t rows, int64_t cols) {
  TestWeight weight = RandomWeight(type, rows, cols, 2);
  const WeightTypeTraits& traits = Traits(type);
  const auto blocks = static_cast<int64_t>(weight.bytes.size()) / traits.block_bytes;
  for (int64_t b = 0; b < blocks; ++b) {
    std::byte* const block = weight.bytes.data() + b * traits.block_bytes;
    if (type == WeightType::kF8E4M3Scaled) {
      const float scale = b % 2 == 0 ? 0.5f : 2.0f;
      std::memcpy(block, &scale, sizeof(scale));
      // Magnitudes from 1 to 3.75.
      for (int i = 4; i < kScaledBlockBytes; ++i) {
        block[i] = (block[i] & std::byte{0x8f}) | std::byte{0x38};
      }
      continue;
    }
    const auto power = [&](int64_t offset) {
      const uint16_t bits = F32ToF16((b + offset) % 2 == 0 ? 0.5f : -2.0f);
      std::memcpy(block + offset, &bits, 2);
    };
    power(type == WeightType::kQ6_K ? 208 : 0);
    const bool k_quant = type == WeightType::kQ4_K || type == WeightType::kQ5_K;
    if (type == WeightType::kQ4_1 || type == WeightType::kQ5_1 || k_quant) power(2);
    // Factors of at most 3, so that a weight has at most 8 bits and fits bf16.
    if (k_quant) {
      for (int i = 4; i < 16; ++i) block[i] &= static_cast<std::byte>(i < 12 ? 3 : 0x33);
    }
    if (type == WeightType::kQ6_K) {
      for (int i = 192; i < 208; ++i) block[i] &= std::byte{3};
    }
  }
  EXPECT_TRUE(Dequantize(weight.view, 0, rows, weight.values).ok());
  EXPECT_EQ(Decode(DType::kBF16, Encode(DType::kBF16, weight.values)), weight.values);
  return weight;
}

// Returns the sum of the magnitudes of the products of a row and a token.
double Magnitude(const float* row, const float* token, int64_t cols) {
  double sum = 0.0;
  for (int64_t k = 0; k < cols; ++k) sum += std::abs(double{row[k]} * token[k]);
  return sum;
}

// A weight is rounded once to the dtype of activations, as when it is stored in that dtype. So only
// the sums differ from double. A sum of n products, in any order, is off by at most n - 1 roundings
// of the sum of the magnitudes; a product of two 16-bit numbers is exact.
double SumBound(int64_t cols, double magnitude) {
  return static_cast<double>(cols) * 0x1p-23 * magnitude;
}

TEST_P(PackedGemmTest, AgreesWithDoublesForEveryTypeAndNumberOfTokens) {
  double worst = 0.0;
  for (const WeightType type : kPackedTypes) {
    for (const DType dtype : kHalves) {
      SCOPED_TRACE(std::string(Traits(type).name) + " " + std::string(Name(dtype)));
      constexpr int64_t kRows = 75, kMostTokens = 65;  // three blocks of rows, the last not full
      const int64_t cols = ColsOf(type);
      const TestWeight weight = RandomWeight(type, kRows, cols, 1);
      const std::vector<float> rounded = Decode(dtype, Encode(dtype, weight.values));
      const CudaWeight prepared = Prepare({&weight}, dtype);
      ASSERT_TRUE(prepared.is_packed());
      DeviceFloats input(*device_, dtype, Normal(2, kMostTokens * cols));
      std::vector<float> few;
      for (const int64_t num_tokens : {1, 3, 8, 9, 16, 17, 24, 32, 33, 48, 64, 65}) {
        const std::vector<float> got = Multiply(prepared, input, num_tokens, DType::kF32, scratch_);
        for (int64_t t = 0; t < num_tokens; ++t) {
          for (int64_t r = 0; r < kRows; ++r) {
            double want = 0.0, magnitude = 0.0;
            for (int64_t k = 0; k < cols; ++k) {
              const double product = double{rounded[static_cast<size_t>(r * cols + k)]} *
                                     input.values[static_cast<size_t>(t * cols + k)];
              want += product;
              magnitude += std::abs(product);
            }
            const double bound = SumBound(cols, magnitude);
            const double error = std::abs(got[static_cast<size_t>(t * kRows + r)] - want);
            ASSERT_LE(error, bound) << num_tokens << " tokens, token " << t << ", row " << r;
            worst = std::max(worst, error / bound);
          }
        }
        // A token has the bits that it has beside fewer tokens.
        if (num_tokens <= MostPackedTokens(type, kRows, cols, device_->info().num_sms)) {
          EXPECT_EQ(std::vector<float>(got.begin(),
                                       got.begin() + static_cast<std::ptrdiff_t>(few.size())),
                    few);
          few = got;
        }
      }
    }
  }
  RecordProperty("worst", std::to_string(worst));
  EXPECT_GT(worst, 0.0);
}

// Refuses products of cuBLASLt, and counts launches.
class PackedOnlyDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::Status LaunchKernel(const KernelLaunch& launch) override {
    ++num_launches;
    return ForwardingDevice::LaunchKernel(launch);
  }
  absl::Status Gemm(const GemmArgs& /*args*/) override {
    return absl::InternalError("want no product of cuBLASLt");
  }

  int num_launches = 0;
};

TEST_P(PackedGemmTest, WithFixedRowsATokenHasItsBitsForAnyNumberOfTokens) {
  constexpr int64_t kRows = 75, kMostTokens = 200;
  const WeightType type = WeightType::kQ5_K;
  const int64_t cols = ColsOf(type);
  const TestWeight weight = RandomWeight(type, kRows, cols, 1);
  const CudaWeight prepared = Prepare({&weight}, DType::kBF16);
  DeviceFloats input(*device_, DType::kBF16, Normal(2, kMostTokens * cols));
  PackedOnlyDevice device(*device_);
  std::vector<float> most;
  for (const int64_t num_tokens : {200, 65, 64, 40, 33, 32, 17, 16, 9, 8, 1}) {
    DeviceFloats out(*device_, DType::kF32, num_tokens * kRows);
    const absl::Status status = Linear(device,
                                       {.out = out.View({num_tokens, kRows}),
                                        .input = input.View({num_tokens, cols}),
                                        .weight = &prepared},
                                       scratch_, GemmRows::kFixed);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<float> got = out.ToHost();
    if (most.empty()) most = got;
    EXPECT_TRUE(std::equal(got.begin(), got.end(), most.begin())) << num_tokens;
  }
  for (const int64_t token : {64, 130, 199}) {
    const auto from = input.values.begin() + token * cols;
    DeviceFloats alone(*device_, DType::kBF16, std::vector<float>(from, from + cols));
    const std::vector<float> got = Multiply(prepared, alone, 1, DType::kF32, scratch_);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), most.begin() + token * kRows)) << token;
  }
}

// Rows for two blocks, whose last group is not full. If the scratch memory has room for the parts
// of sums, several blocks share their rows. Otherwise a block has all parts.
TEST_P(PackedGemmTest, BlocksThatShareRowsGiveTheBitsOfOneBlock) {
  constexpr int64_t kRows = 283, kMostTokens = 64;
  for (const WeightType type : {WeightType::kQ4_K, WeightType::kQ8_0}) {
    for (const int64_t cols : {ColsOf(type), int64_t{256}}) {  // 256: half of the parts are empty
      SCOPED_TRACE(std::string(Traits(type).name) + " " + std::to_string(cols));
      const TestWeight weight = RandomWeight(type, kRows, cols, 19);
      const CudaWeight prepared = Prepare({&weight}, DType::kBF16);
      DeviceFloats input(*device_, DType::kBF16, Normal(20, kMostTokens * cols));
      const std::vector<float> few = Multiply(prepared, input, 16, DType::kF32, scratch_);
      const auto end = few.begin() + static_cast<std::ptrdiff_t>(few.size());
      for (const int64_t num_tokens : {29, 64}) {
        PackedOnlyDevice shared(*device_), alone(*device_);
        const auto multiply = [&](Device& device, int64_t scratch_bytes) {
          DeviceFloats out(*device_, DType::kF32, num_tokens * kRows);
          const DeviceBuffer scratch = *device_->Allocate(scratch_bytes);
          EXPECT_TRUE(Linear(device,
                             {.out = out.View({num_tokens, kRows}),
                              .input = input.View({num_tokens, cols}),
                              .weight = &prepared},
                             scratch)
                          .ok());
          return out.ToHost();
        };
        // A quarter of the scratch memory is for parts, of four bytes each.
        const int64_t parts_bytes = 4 * (8 * num_tokens * kRows * 4);
        const std::vector<float> want = multiply(alone, parts_bytes - 1024);
        EXPECT_EQ(multiply(shared, parts_bytes), want);
        EXPECT_TRUE(std::equal(few.begin(), end, want.begin())) << num_tokens;
        EXPECT_EQ(alone.num_launches, 1);
        EXPECT_EQ(shared.num_launches, 2);
      }
    }
  }
}

TEST_P(PackedGemmTest, AWeightIsExpandedForMoreTokensThanTheLimitAlone) {
  const TestWeight weight = RandomWeight(WeightType::kQ8_0, 16, 64, 21);
  const CudaWeight prepared = Prepare({&weight}, DType::kF16);
  const int64_t limit = MostPackedTokens(WeightType::kQ8_0, 16, 64, device_->info().num_sms);
  DeviceFloats input(*device_, DType::kF16, Normal(22, (limit + 1) * 64));
  DeviceFloats out(*device_, DType::kF32, (limit + 1) * 16);
  PackedOnlyDevice device(*device_);
  const auto multiply = [&](int64_t num_tokens) {
    return Linear(device,
                  {.out = out.View({num_tokens, 16}),
                   .input = input.View({num_tokens, 64}),
                   .weight = &prepared},
                  scratch_);
  };
  EXPECT_TRUE(multiply(limit).ok());
  EXPECT_EQ(multiply(limit + 1).code(), absl::StatusCode::kInternal);
}

TEST(PackedChoiceTest, BlocksShareRowsWhileMultiprocessorsAreFree) {
  EXPECT_EQ(PackedBlocksPerRow(1, 132), 8);
  EXPECT_EQ(PackedBlocksPerRow(4096, 132), 8);
  EXPECT_EQ(PackedBlocksPerRow(4097, 132), 4);
  EXPECT_EQ(PackedBlocksPerRow(8448, 132), 4);
  EXPECT_EQ(PackedBlocksPerRow(16896, 132), 2);
  EXPECT_EQ(PackedBlocksPerRow(16897, 132), 1);
  EXPECT_EQ(PackedBlocksPerRow(128256, 132), 1);
}

// The numbers that docs/evidence/gpu-predictions.md has.
TEST(PackedChoiceTest, SmallTypesAndLongRowsAreMultipliedAsTheyAreByMoreTokens) {
  const auto limit = [](WeightType type, int64_t rows, int64_t cols) {
    return MostPackedTokens(type, rows, cols, 132);
  };
  EXPECT_EQ(limit(WeightType::kQ4_K, 28672, 4096), 192);
  EXPECT_EQ(limit(WeightType::kQ8_0, 28672, 4096), 128);
  EXPECT_EQ(limit(WeightType::kQ4_K, 4096, 14336), 128);
  EXPECT_EQ(limit(WeightType::kQ8_0, 4096, 14336), 128);
  EXPECT_EQ(limit(WeightType::kQ4_K, 4096, 4096), 64);
  EXPECT_EQ(limit(WeightType::kQ8_0, 4096, 512), 64);
}

// Scales that are powers of two, and activations that are small integers: no rounding anywhere, so
// the result is exact in any order.
TEST_P(PackedGemmTest, IsExactOnSmallNumbers) {
  for (const WeightType type : kPackedTypes) {
    SCOPED_TRACE(Traits(type).name);
    constexpr int64_t kRows = 33, kTokens = 40;
    const int64_t cols = ColsOf(type);
    const TestWeight weight = ExactWeight(type, kRows, cols);
    const CudaWeight prepared = Prepare({&weight}, DType::kBF16);
    std::vector<float> integers;
    for (const Bf16 value : testing::SmallIntegers<Bf16>(kTokens * cols, 3)) {
      integers.push_back(testing::ValueOf(value));
    }
    DeviceFloats input(*device_, DType::kBF16, integers);
    for (const int64_t num_tokens : {5, 12, 27, 40}) {
      std::vector<float> want;
      for (int64_t t = 0; t < num_tokens; ++t) {
        for (int64_t r = 0; r < kRows; ++r) {
          float sum = 0.0f;
          for (int64_t k = 0; k < cols; ++k) {
            sum += weight.values[static_cast<size_t>(r * cols + k)] *
                   integers[static_cast<size_t>(t * cols + k)];
          }
          want.push_back(sum);
        }
      }
      EXPECT_EQ(Multiply(prepared, input, num_tokens, DType::kF32, scratch_), want);
    }
  }
}

// A token that is 1 in one column and 0 in the others gives the weights of that column.
TEST_P(PackedGemmTest, WeightsHaveTheBitsThatTheyHaveExpanded) {
  for (const WeightType type : kPackedTypes) {
    for (const DType dtype : kHalves) {
      SCOPED_TRACE(std::string(Traits(type).name) + " " + std::string(Name(dtype)));
      constexpr int64_t kRows = 32, kTokens = 32;
      const int block_cols = Traits(type).block_elements;
      const int64_t cols = block_cols == 256 ? 256 : block_cols == 64 ? 128 : 96;
      TestWeight weight = RandomWeight(type, kRows, cols, 18);
      // The scales of the first two blocks are the largest, and a subnormal one.
      const float largest_e4m3_scale = kLargestE4M3Scale, subnormal_float = 0x1p-149f;
      const uint16_t largest = 0x7bff, subnormal = 0x0001;
      std::byte* const first_block = weight.bytes.data();
      std::byte* const second_block = first_block + Traits(type).block_bytes;
      if (type == WeightType::kF8E4M3Scaled) {
        std::memcpy(first_block, &largest_e4m3_scale, sizeof(float));
        std::memcpy(second_block, &subnormal_float, sizeof(float));
      } else {
        const int at = type == WeightType::kQ6_K ? 208 : 0;
        std::memcpy(first_block + at, &largest, 2);
        std::memcpy(second_block + at, &subnormal, 2);
      }
      ASSERT_TRUE(Dequantize(weight.view, 0, kRows, weight.values).ok());
      const std::vector<float> want = Decode(dtype, Encode(dtype, weight.values));
      const CudaWeight prepared = Prepare({&weight}, dtype);
      for (int64_t first = 0; first < cols; first += kTokens) {
        std::vector<float> units(static_cast<size_t>(kTokens * cols));
        for (int64_t t = 0; t < kTokens; ++t) {
          units[static_cast<size_t>(t * cols + first + t)] = 1.0f;
        }
        DeviceFloats input(*device_, dtype, units);
        const std::vector<float> got = Multiply(prepared, input, kTokens, DType::kF32, scratch_);
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t r = 0; r < kRows; ++r) {
            const float weight_there = want[static_cast<size_t>(r * cols + first + t)];
            // In f16, the largest weights are infinite, and make the whole row NaN.
            const auto row = want.begin() + r * cols;
            if (std::any_of(row, row + cols, [](float x) { return std::isinf(x); })) continue;
            ASSERT_EQ(got[static_cast<size_t>(t * kRows + r)], weight_there)
                << "row " << r << ", column " << first + t;
          }
        }
      }
    }
  }
}

// Dequantised rows are those that the weight has when it is stored in the dtype of activations. So
// more tokens than the packed GEMM takes give the bits of the expanded weight, also if the scratch
// memory holds only a few rows. The order of sums may depend on the number of rows, so each token
// has one number that is not 0.
TEST_P(PackedGemmTest, ManyTokensGiveTheBitsOfTheExpandedWeight) {
  for (const WeightType type : kPackedTypes) {
    for (const DType dtype : kHalves) {
      SCOPED_TRACE(std::string(Traits(type).name) + " " + std::string(Name(dtype)));
      constexpr int64_t kRows = 51;
      const int64_t cols = ColsOf(type);
      const int64_t tokens = MostPackedTokens(type, kRows, cols, device_->info().num_sms) + 1;
      const TestWeight weight = RandomWeight(type, kRows, cols, 4);
      const CudaWeight packed = Prepare({&weight}, dtype);
      const CudaWeight expanded = Prepare({&weight}, dtype, /*packs=*/false);
      std::vector<float> numbers = Normal(5, tokens * cols);
      for (int64_t i = 0; i < tokens * cols; ++i) {
        if (i % cols != i / cols * 29) numbers[static_cast<size_t>(i)] = 0.0f;
      }
      DeviceFloats input(*device_, dtype, numbers);
      const std::vector<float> want = Multiply(expanded, input, tokens, dtype, scratch_);
      EXPECT_EQ(Multiply(packed, input, tokens, dtype, scratch_), want);
      for (const int64_t rows_at_once : {1, 7, 16, 40}) {
        // A quarter of the scratch memory is for dequantised rows.
        const DeviceBuffer small =
            *device_->Allocate(base::RoundUp(rows_at_once * cols * 2, int64_t{64}) * 4);
        EXPECT_EQ(Multiply(packed, input, tokens, dtype, small), want) << rows_at_once;
      }
    }
  }
}

// Parts of several forms, and each way through Linear: outputs in both dtypes, a residual that is
// the output, an epilogue in float32, and capped logits.
TEST_P(PackedGemmTest, StackedPartsAndEpiloguesGiveTheValuesOfTheExpandedWeight) {
  constexpr DType kDtype = DType::kBF16;
  constexpr int64_t kCols = 256;
  const TestWeight parts[] = {
      RandomWeight(WeightType::kQ4_K, 35, kCols, 6), RandomWeight(WeightType::kQ4_K, 16, kCols, 7),
      RandomWeight(WeightType::kF32, 5, kCols, 8), RandomWeight(WeightType::kQ6_K, 8, kCols, 9)};
  std::vector<const TestWeight*> all;
  for (const TestWeight& part : parts) all.push_back(&part);
  const CudaWeight packed = Prepare(all, kDtype), expanded = Prepare(all, kDtype, false);
  ASSERT_EQ(packed.parts().size(), 4u);
  const int64_t rows = packed.rows();
  DeviceFloats bias(*device_, DType::kF32, Normal(10, rows));
  for (const int64_t num_tokens : {2, 16, 19, 65}) {
    DeviceFloats input(*device_, kDtype, Normal(11, num_tokens * kCols));
    DeviceFloats residual(*device_, kDtype, Normal(12, num_tokens * rows));
    std::vector<double> magnitudes;
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (const TestWeight& part : parts) {
        for (int64_t r = 0; r < part.view.rows; ++r) {
          magnitudes.push_back(
              Magnitude(part.values.data() + r * kCols, input.values.data() + t * kCols, kCols));
        }
      }
    }
    const LinearArgs ways[] = {
        {},
        {.bias = bias.View({rows}), .residual = residual.View({num_tokens, rows})},
        {.activation = Activation::kGelu},
        {.soft_cap = 3.0f}};
    for (const LinearArgs& args : ways) {
      for (const DType out_dtype : {kDtype, DType::kF32}) {
        if (!args.residual.empty() && out_dtype != kDtype) continue;
        const std::vector<float> want =
            Multiply(expanded, input, num_tokens, out_dtype, scratch_, args);
        const std::vector<float> got =
            Multiply(packed, input, num_tokens, out_dtype, scratch_, args);
        for (size_t i = 0; i < want.size(); ++i) {
          // Both sums are within SumBound of the exact one. No epilogue here makes an error larger
          // than 1.2 times, and both results are rounded.
          const double bound = 2.5 * SumBound(kCols, magnitudes[i]) +
                               2 * testing::Rounding(out_dtype) * std::abs(double{want[i]});
          ASSERT_NEAR(got[i], want[i], bound) << num_tokens << " tokens, element " << i;
        }
      }
    }
    // The residual is the output itself, and the product adds it before its one rounding. That of
    // many tokens is the device's, which may order the sums otherwise when it adds something.
    if (num_tokens > 64) continue;
    std::vector<float> sums = Multiply(packed, input, num_tokens, DType::kF32, scratch_);
    LinearArgs in_place = {.out = residual.View({num_tokens, rows}),
                           .input = input.View({num_tokens, kCols}),
                           .weight = &packed,
                           .residual = residual.View({num_tokens, rows})};
    ASSERT_TRUE(Linear(*device_, in_place, scratch_).ok());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += residual.values[i];
    EXPECT_EQ(residual.ToHost(), Decode(kDtype, Encode(kDtype, sums)));
  }
}

// A NaN in one token stays there. Half of the last tile lies past the end of a row, where the next
// token begins.
TEST_P(PackedGemmTest, ANanStaysInItsToken) {
  constexpr int64_t kRows = 40, kCols = 96;
  const TestWeight weight = RandomWeight(WeightType::kQ8_0, kRows, kCols, 13);
  const CudaWeight prepared = Prepare({&weight}, DType::kF16);
  for (const int64_t num_tokens : {10, 30}) {
    std::vector<float> numbers = Normal(14, num_tokens * kCols);
    DeviceFloats clean(*device_, DType::kF16, numbers);
    numbers[3 * kCols + 5] = std::nanf("");
    DeviceFloats input(*device_, DType::kF16, numbers);
    const std::vector<float> want = Multiply(prepared, clean, num_tokens, DType::kF32, scratch_);
    const std::vector<float> got = Multiply(prepared, input, num_tokens, DType::kF32, scratch_);
    for (size_t i = 0; i < got.size(); ++i) {
      if (i / kRows == 3) {
        EXPECT_TRUE(std::isnan(got[i]));
      } else {
        EXPECT_EQ(got[i], want[i]);
      }
    }
  }
}

TEST_P(PackedGemmTest, EmbedDequantisesInFloat32) {
  for (const WeightType type : kPackedTypes) {
    SCOPED_TRACE(Traits(type).name);
    const int64_t cols = ColsOf(type);
    // The first part, whose rows have the most bytes, is a float type. The others are packed, in
    // two types.
    const bool k_quant = Traits(type).block_elements == 256;
    const TestWeight parts[] = {
        RandomWeight(WeightType::kF32, 3, cols, 16), RandomWeight(type, 21, cols, 15),
        RandomWeight(k_quant ? WeightType::kQ6_K : WeightType::kQ8_0, 20, cols, 17)};
    const CudaWeight weight = Prepare({&parts[0], &parts[1], &parts[2]}, DType::kBF16);
    std::vector<float> values;
    for (const TestWeight& part : parts) {
      const bool is_float = testing::IsFloat(part.view.type);
      const std::vector<float> rounded =
          is_float ? Decode(DType::kBF16, Encode(DType::kBF16, part.values)) : part.values;
      values.insert(values.end(), rounded.begin(), rounded.end());
    }
    const std::vector<int32_t> ids = {0, 7, 8, 10, 11, 15, 16, 20, 21, 23, 24, 35, 43, -1, 44};
    const auto num_tokens = static_cast<int64_t>(ids.size());
    DeviceArray<int32_t> tokens(*device_, ids);
    DeviceFloats out(*device_, DType::kBF16,
                     std::vector<float>(static_cast<size_t>(num_tokens * cols)));
    ASSERT_TRUE(Embed(*device_, {.out = out.View({num_tokens, cols}),
                                 .token_ids = TensorView(tokens.data(), DType::kI32, {num_tokens}),
                                 .weight = &weight,
                                 .scale = 1.7f})
                    .ok());
    const std::vector<float> got = out.ToHost();
    std::vector<float> want;
    for (size_t t = 0; t + 2 < ids.size(); ++t) {
      for (int64_t i = 0; i < cols; ++i) {
        want.push_back(1.7f * values[static_cast<size_t>(ids[t] * cols + i)]);
      }
    }
    want = Decode(DType::kBF16, Encode(DType::kBF16, want));
    const auto known = static_cast<std::ptrdiff_t>(want.size());
    EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + known), want);
    EXPECT_TRUE(std::all_of(got.begin() + known, got.end(), [](float x) { return std::isnan(x); }));
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
