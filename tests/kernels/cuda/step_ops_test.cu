// Tests UpdateTable, TakeTokens, Embed, GatherRows, CopyBlocks, Norm, Argmax and Linear against
// plain loops, in three thread orders.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::Decode;
using testing::DeviceArray;
using testing::DeviceFloats;
using ::testing::ElementsAre;
using testing::Encode;
using ::testing::HasSubstr;
using testing::kAllThreadOrders;
using testing::kFloats;
using testing::Normal;
using testing::Rounding;
using testing::ThreadOrder;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

class StepOpsTest : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  const std::unique_ptr<Device> device_ = testing::MakeDevice(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Orders, StepOpsTest, ::testing::ValuesIn(kAllThreadOrders));

CudaWeight MakeWeight(Device& device, DType dtype, int64_t rows, int64_t cols,
                      const std::vector<float>& values) {
  const std::vector<uint8_t> bytes = Encode(dtype, values);
  DeviceBuffer memory = *device.Allocate(static_cast<int64_t>(bytes.size()));
  EXPECT_TRUE(device.CopyToDevice(memory.data(), bytes.data(), memory.bytes()).ok());
  EXPECT_TRUE(device.Synchronize().ok());
  return CudaWeight(std::move(memory), dtype, rows, cols);
}

TEST_P(StepOpsTest, EmbedScalesRowsAndGivesNanForUnknownIds) {
  for (const DType table : kFloats) {
    for (const DType dtype : kFloats) {
      for (const int64_t cols : {40, 11}) {
        const CudaWeight weight = MakeWeight(*device_, table, 5, cols, Normal(1, 5 * cols));
        const std::vector<float> values = Decode(table, Encode(table, Normal(1, 5 * cols)));
        DeviceArray<int32_t> ids(*device_, std::vector<int32_t>{4, 0, 5, 4, -1});
        DeviceFloats out(*device_, dtype, 5 * cols);
        ASSERT_TRUE(Embed(*device_, {.out = out.View({5, cols}),
                                     .token_ids = TensorView(ids.data(), DType::kI32, {5}),
                                     .weight = &weight,
                                     .scale = 1.5f})
                        .ok());
        const std::vector<float> got = out.ToHost();
        for (int64_t i = 0; i < cols; ++i) {
          const auto want = [&](int64_t row) {
            return Decode(dtype, Encode(dtype, {values[row * cols + i] * 1.5f}))[0];
          };
          ASSERT_EQ(got[i], want(4));
          ASSERT_EQ(got[cols + i], want(0));
          ASSERT_TRUE(std::isnan(got[2 * cols + i]));
          ASSERT_EQ(got[3 * cols + i], want(4));
          ASSERT_TRUE(std::isnan(got[4 * cols + i]));
        }
      }
    }
  }
}

TEST_P(StepOpsTest, TakeTokensReplacesTokensThatHaveASource) {
  for (const int64_t count : {5, 300}) {
    std::vector<int32_t> ids, sources, want;
    const std::vector<int32_t> drawn = {70, 71, 72};
    for (int32_t i = 0; i < count; ++i) {
      ids.push_back(i);
      sources.push_back(i % 5 - 1);  // -1, which is no source; 0 to 2; 3, which is out of range
      want.push_back(i % 5 == 0 ? i : i % 5 == 4 ? -1 : drawn[i % 5 - 1]);
    }
    sources[0] = -2;
    want[0] = -1;
    // The token after the last has a source, and stays as it is.
    ids.push_back(-3);
    sources.push_back(0);
    want.push_back(-3);
    DeviceArray<int32_t> on_device(*device_, ids), from(*device_, drawn), at(*device_, sources);
    ASSERT_TRUE(
        TakeTokens(*device_, {.token_ids = TensorView(on_device.data(), DType::kI32, {count}),
                              .drawn = TensorView(from.data(), DType::kI32, {3}),
                              .sources = TensorView(at.data(), DType::kI32, {count})})
            .ok());
    EXPECT_EQ(on_device.ToHost(), want);
  }
}

TEST_P(StepOpsTest, UpdateTableWritesTheChangedEntriesAlone) {
  for (const int32_t count : {4, 300}) {
    // Every third entry changes. The last two changes are outside the table.
    std::vector<int32_t> table, changes, want;
    for (int32_t i = 0; i < count; ++i) {
      table.push_back(i);
      want.push_back(i % 3 == 0 ? -1 - i : i);
      if (i % 3 == 0) changes.insert(changes.begin(), {i, -1 - i});
    }
    changes.insert(changes.end(), {count, 77, -1, 78});
    table.push_back(5);  // not a part of the table
    want.push_back(5);
    DeviceArray<int32_t> on_device(*device_, table), from(*device_, changes);
    const auto num_changes = static_cast<int64_t>(changes.size() / 2);
    ASSERT_TRUE(
        UpdateTable(*device_, {.table = TensorView(on_device.data(), DType::kI32, {count}),
                               .changes = TensorView(from.data(), DType::kI32, {num_changes, 2})})
            .ok());
    EXPECT_EQ(on_device.ToHost(), want);
  }
}

TEST_P(StepOpsTest, GatherRowsTakesRowsInAnyOrder) {
  for (const DType dtype : kFloats) {
    for (const int64_t cols : {1, 7, 600}) {
      DeviceFloats input(*device_, dtype, Normal(1, 4 * cols)), out(*device_, dtype, 4 * cols);
      DeviceArray<int32_t> rows(*device_, std::vector<int32_t>{3, 0, 4, 3});
      ASSERT_TRUE(GatherRows(*device_, {.out = out.View({4, cols}),
                                        .input = input.View({4, cols}),
                                        .rows = TensorView(rows.data(), DType::kI32, {4})})
                      .ok());
      const std::vector<float> got = out.ToHost();
      for (int64_t i = 0; i < cols; ++i) {
        ASSERT_EQ(got[i], input.values[3 * cols + i]);
        ASSERT_EQ(got[cols + i], input.values[i]);
        ASSERT_TRUE(std::isnan(got[2 * cols + i]));
        ASSERT_EQ(got[3 * cols + i], input.values[3 * cols + i]);
      }
    }
  }
}

TEST_P(StepOpsTest, CopyBlocksCopiesWholeBlocksAndNothingElse) {
  // The first case has more copies than one launch takes, and its blocks have an odd number of
  // 16-bit words. The second case has blocks that are copied in several parts.
  struct Case {
    DType dtype;
    int64_t elements;
    int32_t num_copies;
  };
  for (const auto& [dtype, elements, num_copies] :
       {Case{DType::kF16, 33, 300}, {DType::kF16, 9000, 2}, {DType::kF8E4M3, 66, 3}}) {
    const int64_t num_blocks = 2 * num_copies + 1;
    DeviceFloats cache(*device_, dtype, Normal(1, num_blocks * elements));
    std::vector<float> want = cache.values;
    std::vector<BlockCopy> copies;
    for (int32_t i = 0; i < num_copies; ++i) {
      copies.push_back({.source = 2 * i, .destination = 2 * i + 1});
      std::copy_n(want.begin() + 2 * i * elements, elements, want.begin() + (2 * i + 1) * elements);
    }
    const TensorView blocks = cache.View({num_blocks, elements});
    ASSERT_TRUE(CopyBlocks(*device_, {.blocks = blocks, .copies = copies}).ok());
    EXPECT_EQ(cache.ToHost(), want);
  }
}

TEST_P(StepOpsTest, NormAgreesWithDoubles) {
  constexpr int64_t kRows = 3;
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    for (const DType dtype : kFloats) {
      for (const int64_t size : {1, 7, 100, 2304}) {
        SCOPED_TRACE(size);
        DeviceFloats input(*device_, dtype, Normal(1, kRows * size, 3.0f));
        DeviceFloats weight(*device_, DType::kF32, Normal(2, size));
        DeviceFloats bias(*device_, DType::kF32, Normal(3, size));
        DeviceFloats out(*device_, dtype, kRows * size);
        NormArgs args{.out = out.View({kRows, size}),
                      .input = input.View({kRows, size}),
                      .weight = weight.View({size}),
                      .bias = bias.View({size}),
                      .kind = kind};
        ASSERT_TRUE(Norm(*device_, args).ok());
        const std::vector<float> got = out.ToHost();
        // The kernel adds `part` and `rest`, whose sum is the input.
        std::vector<float> part(input.values.size()), rest(part.size());
        for (size_t i = 0; i < part.size(); ++i) {
          // A negative input is the sum of two halves. Any other input x is 2 x - x. So both parts
          // and their sum are exact.
          part[i] = input.values[i] < 0 ? 0.5f * input.values[i] : 2.0f * input.values[i];
          rest[i] = input.values[i] - part[i];
        }
        DeviceFloats addend(*device_, dtype, part), residual(*device_, dtype, rest);
        args.input = addend.View({kRows, size});
        args.residual = residual.View({kRows, size});
        ASSERT_TRUE(Norm(*device_, args).ok());
        EXPECT_EQ(out.ToHost(), got) << "of a sum";
        EXPECT_EQ(residual.ToHost(), input.values);
        args.residual = {};
        args.input = args.out = input.View({kRows, size});
        ASSERT_TRUE(Norm(*device_, args).ok());
        EXPECT_EQ(input.ToHost(), got) << "in place";

        for (int64_t r = 0; r < kRows; ++r) {
          const float* x = input.values.data() + r * size;
          double mean = 0.0, squares = 0.0, largest = 0.0;
          if (kind == NormKind::kLayerNorm) {
            for (int64_t i = 0; i < size; ++i) mean += x[i] / static_cast<double>(size);
          }
          for (int64_t i = 0; i < size; ++i) {
            squares += (x[i] - mean) * (x[i] - mean);
            largest = std::max(largest, std::abs(double{x[i]}));
          }
          const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(size) + 1e-5);
          // A thread adds at most size / 32 + 8 elements one after another. Two trees of 5 levels
          // add the sums of all threads. The error of the mean is relative to the largest element.
          // Storing the output rounds once more.
          const double relative = (static_cast<double>(size) / 32 + 24) * kEpsilon;
          for (int64_t i = 0; i < size; ++i) {
            const double want = (x[i] - mean) * inverse * weight.values[i] + bias.values[i];
            const double bound =
                relative *
                    ((std::abs(double{x[i]}) + (kind == NormKind::kLayerNorm ? largest : 0)) *
                         inverse * std::abs(weight.values[i]) * (1 + largest * inverse) +
                     std::abs(bias.values[i])) +
                Rounding(dtype) * std::abs(want);
            ASSERT_NEAR(got[r * size + i], want, 1.01 * bound + 1e-7) << r << " " << i;
          }
        }
      }
    }
  }
}

TEST_P(StepOpsTest, ArgmaxTakesTheFirstOfEqualsAndNeverNan) {
  constexpr int64_t kCols = 300;
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = Normal(1, 5 * kCols);
  values[0 * kCols + 299] = 9.0f;
  values[1 * kCols + 33] = values[1 * kCols + 257] = values[1 * kCols + 65] = 9.0f;
  values[2 * kCols + 0] = values[2 * kCols + 150] = nan;
  values[2 * kCols + 151] = 9.0f;
  std::fill_n(values.begin() + 3 * kCols, kCols, nan);
  std::fill_n(values.begin() + 4 * kCols, kCols, -infinity);
  DeviceFloats input(*device_, DType::kF32, values);
  DeviceArray<int32_t> out(*device_, 5);
  ASSERT_TRUE(Argmax(*device_, {.out = TensorView(out.data(), DType::kI32, {5}),
                                .values = input.View({5, kCols})})
                  .ok());
  EXPECT_THAT(out.ToHost(), ElementsAre(299, 33, 151, 0, 0));
}

TEST_P(StepOpsTest, ArgmaxOfFewDifferentNumbersIsTheFirstOfTheLargest) {
  constexpr int64_t kRows = 40, kCols = 600;
  std::vector<float> values = Normal(7, kRows * kCols);
  for (float& value : values) value = std::round(value);
  std::vector<int32_t> want;
  for (int64_t r = 0; r < kRows; ++r) {
    const auto row = values.begin() + r * kCols;
    want.push_back(static_cast<int32_t>(std::max_element(row, row + kCols) - row));
  }
  DeviceFloats input(*device_, DType::kF32, values);
  DeviceArray<int32_t> out(*device_, kRows);
  ASSERT_TRUE(Argmax(*device_, {.out = TensorView(out.data(), DType::kI32, {kRows}),
                                .values = input.View({kRows, kCols})})
                  .ok());
  EXPECT_EQ(out.ToHost(), want);
}

constexpr float kLimit = 2.0f;  // of kClampedSiluMul

double Activated(Activation activation, double y) {
  const double cubic = 2 * std::sqrt(2 / std::acos(-1.0)) * (y + 0.044715 * y * y * y);
  switch (activation) {
    case Activation::kNone:
      return y;
    case Activation::kGelu:
      return y * std::erfc(-y / std::sqrt(2.0)) / 2;
    case Activation::kGeluTanh:
    case Activation::kGeluTanhMul:
      return y / (1 + std::exp(-cubic));
    case Activation::kSiluMul:
      return y / (1 + std::exp(-y));
    case Activation::kClampedSiluMul:
      y = std::min(y, double{kLimit});
      return y / (1 + std::exp(-1.702 * y));
  }
  return NAN;
}

TEST_P(StepOpsTest, LinearAddsBiasActivationAndResidualToTheProduct) {
  constexpr int64_t kTokens = 5, kCols = 24;
  for (const DType dtype : kFloats) {
    for (const Activation activation :
         {Activation::kNone, Activation::kGelu, Activation::kGeluTanh, Activation::kSiluMul,
          Activation::kGeluTanhMul, Activation::kClampedSiluMul}) {
      for (const auto& shape : {std::pair<int64_t, bool>{16, true}, {16, false}, {6, true}}) {
        const int64_t outputs = shape.first;
        const bool with_bias = shape.second;
        const bool gated = IsGated(activation);
        const int64_t rows = gated ? 2 * outputs : outputs;
        DeviceFloats input(*device_, dtype, Normal(1, kTokens * kCols));
        DeviceFloats bias(*device_, DType::kF32, Normal(2, rows));
        // `out` initially holds the residual.
        DeviceFloats out(*device_, dtype, Normal(3, kTokens * outputs));
        const std::vector<float> w = Decode(dtype, Encode(dtype, Normal(4, rows * kCols)));
        const CudaWeight weight = MakeWeight(*device_, dtype, rows, kCols, w);
        const DeviceBuffer scratch = *device_->Allocate(2 * rows * 4 + 4);  // room for two tokens
        const TensorView view = out.View({kTokens, outputs});
        ASSERT_TRUE(Linear(*device_,
                           {.out = view,
                            .input = input.View({kTokens, kCols}),
                            .weight = &weight,
                            .bias = with_bias ? bias.View({rows}) : TensorView(),
                            .residual = view,
                            .activation = activation,
                            .activation_limit = kLimit},
                           scratch)
                        .ok());
        const std::vector<float> got = out.ToHost();
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t i = 0; i < outputs; ++i) {
            // The largest error bound of the products from which the output element is computed.
            double error = 0.0;
            const auto product = [&](int64_t row) {
              double sum = with_bias ? bias.values[row] : 0.0, magnitude = std::abs(sum);
              for (int64_t k = 0; k < kCols; ++k) {
                const double term = double{input.values[t * kCols + k]} * w[row * kCols + k];
                sum += term;
                magnitude += std::abs(term);
              }
              error = std::max(error, (kCols + 2) * kEpsilon * magnitude);
              return sum;
            };
            const double y = product(i);
            double want = Activated(activation, y), bound = error;
            if (activation != Activation::kNone) {
              // The slope of an activation is below 1.13. The second term covers the error of e^x
              // or erfc, whose argument is inexact.
              bound = 1.13 * error + (8 + y * y) * kEpsilon * std::abs(want);
            }
            if (gated) {
              double up = product(outputs + i);
              if (activation == Activation::kClampedSiluMul) {
                up = std::clamp(up, -double{kLimit}, double{kLimit}) + 1;
                error += kEpsilon * std::abs(up);
              }
              bound = bound * std::abs(up) + error * (std::abs(want) + bound) +
                      kEpsilon * std::abs(want * up);
              want *= up;
            }
            const double residual = out.values[t * outputs + i];
            want += residual;
            bound +=
                kEpsilon * (std::abs(want) + std::abs(residual)) + Rounding(dtype) * std::abs(want);
            ASSERT_NEAR(got[t * outputs + i], want, 1.01 * bound) << t << " " << i;
          }
        }
      }
    }
  }
}

// The logits of a head are float32. Without a residual, they are capped in place and need no
// scratch memory.
TEST_P(StepOpsTest, LinearCapsLogits) {
  constexpr int64_t kTokens = 5, kCols = 24;
  for (const DType dtype : kFloats) {
    for (const int64_t rows : {12, 7}) {
      for (const bool with_residual : {false, true}) {
        DeviceFloats input(*device_, dtype, Normal(1, kTokens * kCols));
        DeviceFloats out(*device_, DType::kF32, Normal(3, kTokens * rows));
        const std::vector<float> w = Decode(dtype, Encode(dtype, Normal(4, rows * kCols)));
        const CudaWeight weight = MakeWeight(*device_, dtype, rows, kCols, w);
        const DeviceBuffer scratch = *device_->Allocate(with_residual ? 2 * rows * 4 : 4);
        const TensorView view = out.View({kTokens, rows});
        constexpr float kCap = 3.0f;
        ASSERT_TRUE(Linear(*device_,
                           {.out = view,
                            .input = input.View({kTokens, kCols}),
                            .weight = &weight,
                            .residual = with_residual ? view : TensorView(),
                            .soft_cap = kCap},
                           scratch)
                        .ok());
        const std::vector<float> got = out.ToHost();
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t i = 0; i < rows; ++i) {
            double y = 0.0, magnitude = 0.0;
            for (int64_t k = 0; k < kCols; ++k) {
              const double term = double{input.values[t * kCols + k]} * w[i * kCols + k];
              y += term;
              magnitude += std::abs(term);
            }
            const double residual = with_residual ? out.values[t * rows + i] : 0.0;
            const double capped = kCap * std::tanh(y / kCap);
            // The slope of tanh is at most 1. The second term counts four roundings: the quotient,
            // two ulp of tanhf, and the product. The last term counts the rounding of the sum.
            const double bound = (kCols + 2) * kEpsilon * magnitude +
                                 4 * kEpsilon * std::abs(capped) +
                                 kEpsilon * std::abs(capped + residual);
            ASSERT_NEAR(got[t * rows + i], capped + residual, bound) << t << " " << i;
          }
        }
      }
    }
  }
}

TEST(StepOpsRefusalTest, NamesWhatItCannotDo) {
  const auto device = testing::MakeDevice();
  DeviceFloats x(*device, DType::kF32, Normal(1, 64));
  NormArgs norm{.out = x.View({2, 8}), .input = x.View({2, 8}), .weight = x.View({7})};
  EXPECT_THAT(std::string(Norm(*device, norm).message()),
              HasSubstr("weight: want f32 [8], got f32 [7]"));
  norm.weight = TensorView(x.View({64}).data<float>() + 1, DType::kF32, {8});
  EXPECT_THAT(std::string(Norm(*device, norm).message()),
              HasSubstr("weight: want memory at a multiple of 16 bytes, got 4 past one"));

  const CudaWeight weight = MakeWeight(*device, DType::kBF16, 4, 8, Normal(1, 32));
  LinearArgs linear{.out = x.View({2, 4}), .input = x.View({2, 8}), .weight = &weight};
  EXPECT_THAT(std::string(Linear(*device, linear, {}).message()),
              HasSubstr("input: want bf16, as the weight, got f32"));
  const CudaWeight wide = MakeWeight(*device, DType::kF32, 4, 8, Normal(1, 32));
  linear.weight = &wide;
  linear.bias = x.View({4});
  const DeviceBuffer scratch = *device->Allocate(12);
  EXPECT_THAT(std::string(Linear(*device, linear, scratch).message()),
              HasSubstr("weight: want at most 3 rows, got 4"));
}

}  // namespace
}  // namespace quire::kernels::cuda
