// The ops of a step but attention, against plain loops, in three orders of threads.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/cuda_weight.h"
#include "kernels/cuda/ops.h"
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
  // More than one launch's worth of copies, blocks of several parts, and of odd words.
  for (const auto& [elements, num_copies] : {std::pair<int64_t, int32_t>{33, 300}, {9000, 2}}) {
    const int64_t num_blocks = 2 * num_copies + 1;
    DeviceFloats cache(*device_, DType::kF16, Normal(1, num_blocks * elements));
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
        // What sums to the input, added by the kernel.
        std::vector<float> part(input.values.size()), rest(part.size());
        for (size_t i = 0; i < part.size(); ++i) {
          // Multiples of the input's own last place: both numbers and their sum are exact.
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
          // A thread adds at most size / 32 + 8 elements one after another, then two trees of 5;
          // the mean's error is of the largest element's size. One rounding on store.
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

TEST_P(StepOpsTest, LinearAddsBiasActivationAndResidualToTheProduct) {
  constexpr int64_t kTokens = 5, kCols = 24;
  for (const DType dtype : kFloats) {
    for (const Activation activation : {Activation::kNone, Activation::kSiluMul}) {
      for (const auto& shape : {std::pair<int64_t, bool>{16, true}, {16, false}, {6, true}}) {
        const int64_t outputs = shape.first;
        const bool with_bias = shape.second;
        const bool silu_mul = activation == Activation::kSiluMul;
        const int64_t rows = silu_mul ? 2 * outputs : outputs;
        DeviceFloats input(*device_, dtype, Normal(1, kTokens * kCols));
        DeviceFloats bias(*device_, DType::kF32, Normal(2, rows));
        DeviceFloats out(*device_, dtype, Normal(3, kTokens * outputs));  // the residual, too
        const std::vector<float> w = Decode(dtype, Encode(dtype, Normal(4, rows * kCols)));
        const CudaWeight weight = MakeWeight(*device_, dtype, rows, kCols, w);
        const DeviceBuffer scratch = *device_->Allocate(2 * rows * 4 + 4);  // two tokens at once
        const TensorView view = out.View({kTokens, outputs});
        ASSERT_TRUE(Linear(*device_,
                           {.out = view,
                            .input = input.View({kTokens, kCols}),
                            .weight = &weight,
                            .bias = with_bias ? bias.View({rows}) : TensorView(),
                            .residual = view,
                            .activation = activation},
                           scratch)
                        .ok());
        const std::vector<float> got = out.ToHost();
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t i = 0; i < outputs; ++i) {
            double error = 0.0;  // of the larger of the sums that go into it
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
            double want = product(i), bound = error;
            if (silu_mul) {
              const double gate = want, up = product(outputs + i);
              want = gate / (1 + std::exp(-gate)) * up;
              // Silu's slope stays below 1.1.
              bound = 1.1 * error * std::abs(up) + error * std::abs(gate) +
                      8 * kEpsilon * std::abs(want);
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

// How a row of QKV is prepared, and the row so prepared, in doubles.
struct Preparation {
  const char* name;
  bool bias = false, norms = false, by_head = false;
  float clip = 0.0f;
  NormKind kind = NormKind::kRmsNorm;
};
constexpr Preparation kPreparations[] = {
    {.name = "plain"},
    {.name = "bias and clip", .bias = true, .clip = 1.25f},
    {.name = "each head normed", .norms = true, .by_head = true},
    {.name = "all heads normed",
     .bias = true,
     .norms = true,
     .clip = 1.25f,
     .kind = NormKind::kLayerNorm}};

struct Bounded {
  double value = 0.0, error = 0.0;
};

// Norms `x` by `weight`, which may be shorter and then repeats; see NormAgreesWithDoubles.
void NormSection(std::span<Bounded> x, std::span<const float> weight, NormKind kind, double eps) {
  const auto size = static_cast<double>(x.size());
  double mean = 0.0, squares = 0.0, largest = 0.0;
  for (const Bounded& b : x) {
    if (kind == NormKind::kLayerNorm) mean += b.value / size;
    largest = std::max(largest, std::abs(b.value) + b.error);
  }
  for (const Bounded& b : x) squares += (b.value - mean) * (b.value - mean);
  const double inverse = 1.0 / std::sqrt(squares / size + eps);
  // One more rounding than there: the bias's, of the largest element's size.
  const double relative = (size / 32 + 25) * kEpsilon;
  for (size_t i = 0; i < x.size(); ++i) {
    const double w = weight[i % weight.size()];
    x[i].error = relative * (std::abs(x[i].value) + largest) * inverse * std::abs(w) *
                 (1 + largest * inverse);
    x[i].value = (x[i].value - mean) * inverse * w;
  }
}

void Rotate(std::span<Bounded> head, RopeLayout layout, std::span<const float> angles) {
  const size_t half = angles.size() / 2;
  for (size_t i = 0; i < half && layout != RopeLayout::kNone; ++i) {
    Bounded& x = head[layout == RopeLayout::kInterleaved ? 2 * i : i];
    Bounded& y = head[layout == RopeLayout::kInterleaved ? 2 * i + 1 : i + half];
    const double cos = angles[2 * i], sin = angles[2 * i + 1];
    const Bounded a = x, b = y;
    // One product and one fma round.
    const double error =
        kEpsilon * (std::abs(a.value) + std::abs(b.value)) * (std::abs(cos) + std::abs(sin)) +
        (a.error + b.error) * std::max(std::abs(cos), std::abs(sin));
    x = {a.value * cos - b.value * sin, error};
    y = {a.value * sin + b.value * cos, error};
  }
}

TEST_P(StepOpsTest, QkvPostPreparesRotatesAndWritesSlotsAndNothingElse) {
  constexpr int64_t kTokens = 3, kHeads = 3, kKvHeads = 2, kBlockSize = 4, kBlocks = 3;
  constexpr float kEps = 1e-3f;
  const std::vector<int32_t> positions = {5, 0, 2};
  const std::vector<int64_t> slots = {9, -1, 2};  // the second token is written nowhere
  for (const Preparation& preparation : kPreparations) {
    SCOPED_TRACE(preparation.name);
    for (const RopeLayout layout :
         {RopeLayout::kNone, RopeLayout::kInterleaved, RopeLayout::kHalfSplit}) {
      for (const DType dtype : kFloats) {
        for (const int64_t head_dim : {8, 24}) {
          const int64_t rope_dim = head_dim == 24 ? 16 : head_dim, half = rope_dim / 2;
          const DType cache_dtype = dtype == DType::kF32 ? DType::kF16 : dtype;
          const int64_t block = 2 * kKvHeads * kBlockSize * head_dim, stride = 2 * block;
          const int64_t row = (kHeads + 2 * kKvHeads) * head_dim;
          const int64_t query_weights = preparation.by_head ? head_dim : kHeads * head_dim;
          const int64_t key_weights = preparation.by_head ? head_dim : kKvHeads * head_dim;
          DeviceFloats qkv(*device_, dtype, Normal(1, kTokens * row));
          DeviceFloats table(*device_, DType::kF32, Normal(2, 6 * rope_dim));
          DeviceFloats bias(*device_, DType::kF32, Normal(3, row));
          DeviceFloats query_weight(*device_, DType::kF32, Normal(4, query_weights));
          DeviceFloats key_weight(*device_, DType::kF32, Normal(5, key_weights));
          DeviceFloats query(*device_, dtype, kTokens * kHeads * head_dim);
          DeviceFloats cache(*device_, cache_dtype, kBlocks * stride);
          DeviceArray<int32_t> position(*device_, positions);
          DeviceArray<int64_t> slot(*device_, slots);
          QkvPostArgs args = {
              .query = query.View({kTokens, kHeads, head_dim}),
              .kv_cache =
                  cache.View({kBlocks, 2, kKvHeads, kBlockSize, head_dim}).WithRowStride(stride),
              .qkv = qkv.View({kTokens, row}),
              .positions = TensorView(position.data(), DType::kI32, {kTokens}),
              .slot_mapping = TensorView(slot.data(), DType::kI64, {kTokens}),
              .rope_table = table.View({6, half, 2}),
              .rope_layout = layout,
              .clip = preparation.clip};
          if (preparation.bias) args.bias = bias.View({row});
          if (preparation.norms) {
            args.qk_norm = {.query_weight = query_weight.View({query_weights}),
                            .key_weight = key_weight.View({key_weights}),
                            .kind = preparation.kind,
                            .eps = kEps};
          }
          ASSERT_TRUE(QkvPost(*device_, args).ok());

          const std::vector<float> got_query = query.ToHost(), got_cache = cache.ToHost();
          std::vector<bool> written(got_cache.size());
          for (int64_t t = 0; t < kTokens; ++t) {
            std::vector<Bounded> want(static_cast<size_t>(row));
            for (int64_t i = 0; i < row; ++i) {
              double x = qkv.values[t * row + i];
              if (preparation.bias) x += bias.values[i];
              const double error = preparation.bias ? kEpsilon * std::abs(x) : 0.0;
              const double clip = preparation.clip > 0.0f ? preparation.clip : INFINITY;
              want[i] = {std::clamp(x, -clip, clip), error};
            }
            const auto heads = [&](int64_t first, int64_t count) {
              return std::span(want).subspan(first * head_dim, count * head_dim);
            };
            if (preparation.norms && preparation.by_head) {
              for (int64_t h = 0; h < kHeads + kKvHeads; ++h) {
                NormSection(heads(h, 1), h < kHeads ? query_weight.values : key_weight.values,
                            preparation.kind, kEps);
              }
            } else if (preparation.norms) {
              NormSection(heads(0, kHeads), query_weight.values, preparation.kind, kEps);
              NormSection(heads(kHeads, kKvHeads), key_weight.values, preparation.kind, kEps);
            }
            for (int64_t h = 0; h < kHeads + 2 * kKvHeads; ++h) {
              if (h < kHeads + kKvHeads) {
                Rotate(heads(h, 1), layout,
                       std::span(table.values).subspan(positions[t] * rope_dim, rope_dim));
              }
              if (h >= kHeads && slots[t] < 0) continue;
              const int64_t kv_head = h - kHeads;  // K's, then V's
              const int64_t at =
                  h < kHeads ? (t * kHeads + h) * head_dim
                             : slots[t] / kBlockSize * stride +
                                   (kv_head * kBlockSize + slots[t] % kBlockSize) * head_dim;
              for (int64_t d = 0; d < head_dim; ++d) {
                const Bounded& w = want[h * head_dim + d];
                const float got = h < kHeads ? got_query[at + d] : got_cache[at + d];
                const double rounding = Rounding(h < kHeads ? dtype : cache_dtype);
                // The smallest f16 numbers lie 2^-24 apart.
                ASSERT_NEAR(got, w.value, 1.01 * (w.error + rounding * std::abs(w.value)) + 0x1p-25)
                    << t << " " << h << " " << d;
                if (h >= kHeads) written[at + d] = true;
              }
            }
          }
          for (size_t i = 0; i < written.size(); ++i) {
            ASSERT_EQ(std::isnan(got_cache[i]), !written[i]) << i;
          }
        }
      }
    }
  }
}

TEST_P(StepOpsTest, QkvPostGivesNanForUnknownPositionsAndWritesNoUnknownSlot) {
  constexpr int64_t kTokens = 4, kHeadDim = 8, kBlockSize = 4, kBlocks = 2;
  constexpr int64_t kBlock = 2 * kBlockSize * kHeadDim;
  // The table knows positions 0 to 5, the cache slots 0 to 7; there is memory for a block more.
  const std::vector<int32_t> positions = {-1, 6, 5, 0};
  const std::vector<int64_t> slots = {0, 1, 8, 7};
  DeviceFloats qkv(*device_, DType::kF32, Normal(1, kTokens * 3 * kHeadDim));
  DeviceFloats table(*device_, DType::kF32, Normal(2, 8 * kHeadDim));
  DeviceFloats query(*device_, DType::kF32, kTokens * kHeadDim);
  DeviceFloats cache(*device_, DType::kF32, (kBlocks + 1) * kBlock);
  DeviceArray<int32_t> position(*device_, positions);
  DeviceArray<int64_t> slot(*device_, slots);
  ASSERT_TRUE(QkvPost(*device_, {.query = query.View({kTokens, 1, kHeadDim}),
                                 .kv_cache = cache.View({kBlocks, 2, 1, kBlockSize, kHeadDim}),
                                 .qkv = qkv.View({kTokens, 3 * kHeadDim}),
                                 .positions = TensorView(position.data(), DType::kI32, {kTokens}),
                                 .slot_mapping = TensorView(slot.data(), DType::kI64, {kTokens}),
                                 .rope_table = table.View({6, kHeadDim / 2, 2}),
                                 .rope_layout = RopeLayout::kHalfSplit})
                  .ok());
  const std::vector<float> got_query = query.ToHost(), got_cache = cache.ToHost();
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t d = 0; d < kHeadDim; ++d) {
      EXPECT_EQ(std::isnan(got_query[t * kHeadDim + d]), t < 2) << t << " " << d;
    }
  }
  for (int64_t i = 0; i < (kBlocks + 1) * kBlock; ++i) {
    const bool value = i % kBlock >= kBlockSize * kHeadDim;
    const int64_t at = i / kBlock * kBlockSize + i / kHeadDim % kBlockSize;
    // Keys of unknown positions are NaN, their values are not.
    const bool known = at == 7 || (value && at < 2);
    EXPECT_EQ(std::isnan(got_cache[i]), !known) << i;
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

  DeviceArray<int64_t> slots(*device, std::vector<int64_t>{0});
  EXPECT_THAT(
      std::string(QkvPost(*device, {.query = x.View({1, 1, 3}),
                                    .kv_cache = x.View({1, 2, 1, 2, 3}),
                                    .qkv = x.View({1, 9}),
                                    .slot_mapping = TensorView(slots.data(), DType::kI64, {1})})
                      .message()),
      HasSubstr("query: want an even head_dim on CUDA, got 3"));
}

}  // namespace
}  // namespace quire::kernels::cuda
