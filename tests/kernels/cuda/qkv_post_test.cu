// Tests QkvPost on CUDA against plain loops in three thread orders. The op prepares the rows of the
// fused projection and writes them to the cache.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/ops.h"
#include "tests/kernels/cache_testing.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::DeviceArray;
using testing::DeviceFloats;
using ::testing::HasSubstr;
using testing::kAllThreadOrders;
using testing::LargestRounding;
using testing::Normal;
using testing::ThreadOrder;

constexpr double kOneOperation = 0x1p-23;  // the largest relative error of one float32 operation

class QkvPostTest : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  const std::unique_ptr<Device> device_ = testing::MakeDevice(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Orders, QkvPostTest, ::testing::ValuesIn(kAllThreadOrders));

// The steps that prepare a row of QKV before the rotation.
struct Preparation {
  const char* name;
  bool bias = false, norms = false, by_head = false;
  float clip = 0.0f;
  NormKind kind = NormKind::kRmsNorm;
  bool scaled = false;  // queries are scaled by their position
};
constexpr Preparation kPreparations[] = {
    {.name = "plain"},
    {.name = "bias and clip", .bias = true, .clip = 1.25f},
    {.name = "each head normed", .norms = true, .by_head = true},
    {.name = "all heads normed",
     .bias = true,
     .norms = true,
     .clip = 1.25f,
     .kind = NormKind::kLayerNorm},
    {.name = "queries scaled", .norms = true, .by_head = true, .scaled = true}};

struct Bounded {
  double value = 0.0, error = 0.0;
};

// Normalizes `x` and multiplies it by `weight`, which is repeated if it is shorter than `x`. See
// StepOpsTest.NormAgreesWithDoubles for the bound.
void NormSection(std::span<Bounded> x, std::span<const float> weight, NormKind kind, double eps) {
  const auto size = static_cast<double>(x.size());
  double mean = 0.0, squares = 0.0, largest = 0.0;
  for (const Bounded& b : x) {
    if (kind == NormKind::kLayerNorm) mean += b.value / size;
    largest = std::max(largest, std::abs(b.value) + b.error);
  }
  for (const Bounded& b : x) squares += (b.value - mean) * (b.value - mean);
  const double inverse = 1.0 / std::sqrt(squares / size + eps);
  // Counts one rounding more than StepOpsTest.NormAgreesWithDoubles, because the caller may have
  // added a bias to `x`. The error of that sum is relative to the largest element.
  const double relative = (size / 32 + 25) * kOneOperation;
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
    // Each result rounds one product and one fma.
    const double error =
        kOneOperation * (std::abs(a.value) + std::abs(b.value)) * (std::abs(cos) + std::abs(sin)) +
        (a.error + b.error) * std::max(std::abs(cos), std::abs(sin));
    x = {a.value * cos - b.value * sin, error};
    y = {a.value * sin + b.value * cos, error};
  }
}

TEST_P(QkvPostTest, PreparesRotatesAndWritesSlotsAndNothingElse) {
  constexpr int64_t kTokens = 3, kHeads = 6, kKvHeads = 2, kBlockSize = 4, kBlocks = 3;
  constexpr float kEps = 1e-3f;
  const std::vector<int32_t> positions = {5, 0, 2};
  const std::vector<int64_t> slots = {9, -1, 2};  // the second token is written nowhere
  for (const Preparation& preparation : kPreparations) {
    SCOPED_TRACE(preparation.name);
    for (const RopeLayout layout :
         {RopeLayout::kNone, RopeLayout::kInterleaved, RopeLayout::kHalfSplit}) {
      for (const auto& [dtype, cache_dtype] : {std::pair(DType::kF32, DType::kF16),
                                               {DType::kF16, DType::kF16},
                                               {DType::kBF16, DType::kBF16},
                                               {DType::kBF16, DType::kF8E4M3}}) {
        // With a head_dim of 128 and without norms, a thread block takes four of the ten heads, so
        // the last thread block has two.
        for (const auto& dims : {std::pair(8, 8), {24, 24}, {128, 128}, {24, 40}, {64, 8}}) {
          const int64_t head_dim = dims.first, value_dim = dims.second;
          if (head_dim == 128 && (dtype != DType::kF32 || layout != RopeLayout::kHalfSplit))
            continue;
          const int64_t rope_dim = head_dim == 24 ? 16 : head_dim, half = rope_dim / 2;
          const int64_t first_value = (kHeads + kKvHeads) * head_dim;  // in a row of qkv
          const int64_t row = first_value + kKvHeads * value_dim;
          const int64_t keys = kKvHeads * kBlockSize * head_dim;
          const int64_t stride = 2 * (keys + kKvHeads * kBlockSize * value_dim);
          const int64_t query_weights = preparation.by_head ? head_dim : kHeads * head_dim;
          const int64_t key_weights = preparation.by_head ? head_dim : kKvHeads * head_dim;
          DeviceFloats qkv(*device_, dtype, Normal(1, kTokens * row));
          DeviceFloats table(*device_, DType::kF32, Normal(2, 6 * rope_dim));
          DeviceFloats scales(*device_, DType::kF32, Normal(6, 6));
          DeviceFloats bias(*device_, DType::kF32, Normal(3, row));
          DeviceFloats query_weight(*device_, DType::kF32, Normal(4, query_weights));
          DeviceFloats key_weight(*device_, DType::kF32, Normal(5, key_weights));
          DeviceFloats query(*device_, dtype, kTokens * kHeads * head_dim);
          DeviceFloats cache(*device_, cache_dtype, kBlocks * stride);
          DeviceArray<int32_t> position(*device_, positions);
          DeviceArray<int64_t> slot(*device_, slots);
          QkvPostArgs args = {
              .query = query.View({kTokens, kHeads, head_dim}),
              .kv_cache = CacheView(cache.View({1}).raw(), cache_dtype, kBlocks, kKvHeads,
                                    kBlockSize, head_dim, value_dim, stride),
              .qkv = qkv.View({kTokens, row}),
              .positions = TensorView(position.data(), DType::kI32, {kTokens}),
              .slot_mapping = TensorView(slot.data(), DType::kI64, {kTokens}),
              .rope_table = table.View({6, half, 2}),
              .rope_layout = layout,
              .clip = preparation.clip};
          if (cache_dtype == DType::kF8E4M3) args.kv_cache.scales = {.k = 0.37f, .v = 2.9f};
          if (preparation.bias) args.bias = bias.View({row});
          if (preparation.scaled) {
            args.query_scales = scales.View({6});
            args.value_scale = 0.7f;
          }
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
              const double error = preparation.bias ? kOneOperation * std::abs(x) : 0.0;
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
              if (preparation.scaled && h < kHeads) {
                const double scale = scales.values[static_cast<size_t>(positions[t])];
                for (Bounded& x : heads(h, 1)) {
                  x.value *= scale;
                  x.error = x.error * std::abs(scale) + kOneOperation * std::abs(x.value);
                }
              }
              if (preparation.scaled && h >= kHeads + kKvHeads) {
                for (Bounded& x : std::span(want).subspan(
                         first_value + (h - kHeads - kKvHeads) * value_dim, value_dim)) {
                  x.value *= 0.7f;
                  x.error = x.error * 0.7 + kOneOperation * std::abs(x.value);
                }
              }
              if (h >= kHeads && slots[t] < 0) continue;
              const int64_t value_head = h - kHeads - kKvHeads;  // negative: the head is not of V
              const int64_t dim = value_head < 0 ? head_dim : value_dim;
              const int64_t first = value_head < 0 ? h * head_dim : first_value + value_head * dim;
              const int64_t kv_head = value_head < 0 ? h - kHeads : value_head;
              const int64_t at =
                  h < kHeads ? (t * kHeads + h) * head_dim
                             : slots[t] / kBlockSize * stride + (value_head < 0 ? 0 : keys) +
                                   (kv_head * kBlockSize + slots[t] % kBlockSize) * dim;
              for (int64_t d = 0; d < dim; ++d) {
                const Bounded& w = want[first + d];
                const CacheScales& of_cache = args.kv_cache.scales;
                const double scale = h < kHeads ? 1.0 : value_head < 0 ? of_cache.k : of_cache.v;
                const double got = scale * (h < kHeads ? got_query[at + d] : got_cache[at + d]);
                const double rounding =
                    scale * LargestRounding(h < kHeads ? dtype : cache_dtype, w.value / scale);
                ASSERT_NEAR(got, w.value, 1.01 * (w.error + rounding)) << t << " " << h << " " << d;
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

// Numbers near the middles of numbers of e4m3, those that saturate, and those that are no numbers.
std::vector<float> NumbersFor(float scale) {
  using Limits = std::numeric_limits<float>;
  std::vector<float> numbers = {0.0f, Limits::max(), Limits::infinity(), Limits::quiet_NaN()};
  for (int code = 0; code < 0x7e; ++code) {
    const float middle =
        scale *
        (E4M3ToF32(static_cast<uint8_t>(code)) + E4M3ToF32(static_cast<uint8_t>(code + 1))) / 2;
    numbers.insert(numbers.end(), {middle, std::nextafter(middle, 0.0f),
                                   std::nextafter(middle, Limits::max()), 1.1f * middle});
  }
  const size_t count = numbers.size();
  for (size_t i = 0; i < count; ++i) numbers.push_back(-numbers[i]);
  return numbers;
}

TEST_P(QkvPostTest, AnFp8CacheHasTheBitsOfTheCpu) {
  constexpr int64_t kHeadDim = 8, kBlockSize = 16;
  const auto cpu = testing::MakeBackend("auto", 1);
  for (const float scale : {1.0f, 0.037f, 3.0f, CacheScales::kSmallest, CacheScales::kLargest}) {
    const CacheScales scales = {.k = scale, .v = 1.0f / scale};
    testing::HeadShape shape{.num_heads = 1,
                             .num_kv_heads = 1,
                             .head_dim = kHeadDim,
                             .dtype = DType::kF8E4M3,
                             .scales = scales};
    testing::SequenceData tokens = {.key = NumbersFor(scales.k), .value = NumbersFor(scales.v)};
    const int64_t num_tokens = std::ssize(tokens.key) / kHeadDim;
    ASSERT_EQ(num_tokens * kHeadDim, std::ssize(tokens.key));
    tokens.query = std::vector<float>(tokens.key.size(), 1.0f);
    const int64_t num_blocks = (num_tokens + kBlockSize - 1) / kBlockSize;
    for (int32_t block = 0; block < num_blocks; ++block) tokens.blocks.push_back(block);
    testing::PoisonedCache want(*cpu, shape, num_blocks);
    want.Write(tokens, 0, num_tokens, {.value_scale = 0.7f});

    std::vector<float> rows;
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (const std::vector<float>* part : {&tokens.query, &tokens.key, &tokens.value}) {
        rows.insert(rows.end(), part->begin() + t * kHeadDim, part->begin() + (t + 1) * kHeadDim);
      }
      slots.push_back(t);
    }
    constexpr int64_t kStride = 2 * kBlockSize * kHeadDim;
    DeviceFloats qkv(*device_, DType::kF32, rows);
    DeviceFloats query(*device_, DType::kF32, num_tokens * kHeadDim);
    DeviceArray<uint8_t> cache(*device_, num_blocks * kStride);
    DeviceArray<int64_t> slot(*device_, slots);
    QkvPostArgs args = {.query = query.View({num_tokens, 1, kHeadDim}),
                        .kv_cache = CacheView(cache.data(), DType::kF8E4M3, num_blocks, 1,
                                              kBlockSize, kHeadDim, kHeadDim, kStride),
                        .qkv = qkv.View({num_tokens, 3 * kHeadDim}),
                        .slot_mapping = TensorView(slot.data(), DType::kI64, {num_tokens}),
                        .value_scale = 0.7f};
    args.kv_cache.scales = scales;
    ASSERT_TRUE(QkvPost(*device_, args).ok());
    const std::vector<uint8_t> got = cache.ToHost();
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t d = 0; d < kHeadDim; ++d) {
        // The CPU stores 16 keys together, as [head_dim][16].
        const int64_t block = t / kBlockSize, row = t % kBlockSize;
        const uint8_t* const cpu_block =
            want.view().keys.data<uint8_t>() + block * want.view().block_stride();
        const uint8_t* const block_of = got.data() + block * kStride;
        const int64_t value = kBlockSize * kHeadDim + row * kHeadDim + d;
        ASSERT_EQ(block_of[row * kHeadDim + d], cpu_block[d * 16 + row])
            << scale << " " << tokens.key[static_cast<size_t>(t * kHeadDim + d)];
        ASSERT_EQ(block_of[value], cpu_block[value])
            << scale << " " << tokens.value[static_cast<size_t>(t * kHeadDim + d)];
      }
    }
  }
}

TEST_P(QkvPostTest, GivesNanForUnknownPositionsAndWritesNoUnknownSlot) {
  constexpr int64_t kTokens = 4, kHeadDim = 8, kBlockSize = 4, kBlocks = 2;
  constexpr int64_t kBlock = 2 * kBlockSize * kHeadDim;
  // The table has positions 0 to 5, and the cache has slots 0 to 7. The memory has room for one
  // more block after the cache.
  const std::vector<int32_t> positions = {-1, 6, 5, 0};
  const std::vector<int64_t> slots = {0, 1, 8, 7};
  DeviceFloats qkv(*device_, DType::kF32, Normal(1, kTokens * 3 * kHeadDim));
  DeviceFloats table(*device_, DType::kF32, Normal(2, 8 * kHeadDim));
  DeviceFloats scales(*device_, DType::kF32, {1, 1, 1, 1, 1, 1});
  DeviceFloats query(*device_, DType::kF32, kTokens * kHeadDim);
  DeviceFloats cache(*device_, DType::kF32, (kBlocks + 1) * kBlock);
  DeviceArray<int32_t> position(*device_, positions);
  DeviceArray<int64_t> slot(*device_, slots);
  QkvPostArgs args = {.query = query.View({kTokens, 1, kHeadDim}),
                      .kv_cache = cache.View({kBlocks, 2, 1, kBlockSize, kHeadDim}),
                      .qkv = qkv.View({kTokens, 3 * kHeadDim}),
                      .positions = TensorView(position.data(), DType::kI32, {kTokens}),
                      .slot_mapping = TensorView(slot.data(), DType::kI64, {kTokens}),
                      .rope_table = table.View({6, kHeadDim / 2, 2}),
                      .rope_layout = RopeLayout::kHalfSplit};
  ASSERT_TRUE(QkvPost(*device_, args).ok());
  const std::vector<float> got_query = query.ToHost(), got_cache = cache.ToHost();
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t d = 0; d < kHeadDim; ++d) {
      EXPECT_EQ(std::isnan(got_query[t * kHeadDim + d]), t < 2) << t << " " << d;
    }
  }
  for (int64_t i = 0; i < (kBlocks + 1) * kBlock; ++i) {
    const bool value = i % kBlock >= kBlockSize * kHeadDim;
    const int64_t at = i / kBlock * kBlockSize + i / kHeadDim % kBlockSize;
    // For an unknown position, the key is NaN, but the value is not.
    const bool known = at == 7 || (value && at < 2);
    EXPECT_EQ(std::isnan(got_cache[i]), !known) << i;
  }

  args.rope_layout = RopeLayout::kNone;
  args.query_scales = scales.View({6});
  ASSERT_TRUE(QkvPost(*device_, args).ok());
  const std::vector<float> scaled = query.ToHost();
  for (int64_t i = 0; i < kTokens * kHeadDim; ++i) {
    EXPECT_EQ(std::isnan(scaled[i]), i / kHeadDim < 2) << i;
  }
}

// The norms of keys as they are stored, and the largest of all that were ever written. Blocks of
// another layer lie between those of the cache. Each token has three sections of heads, which look
// only at keys that they wrote: others may still be those of before.
TEST_P(QkvPostTest, RaisesTheNormsOfKeys) {
  constexpr int64_t kTokens = 5, kHeads = 3, kKvHeads = 3, kBlockSize = 4, kBlocks = 2;
  constexpr int64_t kHeadDim = 128, kRow = (kHeads + 2 * kKvHeads) * kHeadDim;
  constexpr int64_t kBlock = 2 * kKvHeads * kBlockSize * kHeadDim, kStride = 2 * kBlock;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kBefore = 3.0f;
  const std::vector<int64_t> slots = {5, -1, 8, 1, 0};  // there is no slot 8
  for (const DType cache_dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    SCOPED_TRACE(Name(cache_dtype));
    std::vector<float> rows = Normal(1, kTokens * kRow, 0.15f);
    const auto key = [&](int64_t token, int64_t kv_head) {
      return std::span(rows).subspan(token * kRow + (kHeads + kv_head) * kHeadDim, kHeadDim);
    };
    for (float& x : key(4, 0)) x *= 20.0f;  // the longest key of its head
    for (float& x : key(1, 1)) x *= 20.0f;  // written nowhere, as the next
    for (float& x : key(2, 1)) x *= 20.0f;
    key(0, 2)[7] = -std::nanf("");
    DeviceFloats qkv(*device_, DType::kF32, rows);
    DeviceFloats query(*device_, DType::kF32, kTokens * kHeads * kHeadDim);
    DeviceFloats cache(*device_, cache_dtype, std::vector<float>(kBlocks * kStride, 100.0f));
    const std::vector<float> no_heads(kKvHeads, 0.0f);  // behind the norms
    std::vector<float> before = {0.0f, kBefore, kBefore};
    before.insert(before.end(), no_heads.begin(), no_heads.end());
    DeviceFloats norms(*device_, DType::kF32, before);
    DeviceArray<int64_t> slot(*device_, slots);
    QkvPostArgs args = {.query = query.View({kTokens, kHeads, kHeadDim}),
                        .kv_cache = CacheView(cache.View({1}).raw(), cache_dtype, kBlocks, kKvHeads,
                                              kBlockSize, kHeadDim, kHeadDim, kStride),
                        .qkv = qkv.View({kTokens, kRow}),
                        .slot_mapping = TensorView(slot.data(), DType::kI64, {kTokens})};
    args.kv_cache.key_norms = norms.View({kKvHeads});
    ASSERT_TRUE(QkvPost(*device_, args).ok());
    const std::vector<float> stored = cache.ToHost(), got = norms.ToHost();
    double squares = 0.0;
    for (int64_t d = 0; d < kHeadDim; ++d) {
      const double x = stored[static_cast<size_t>(d)];  // block 0, head 0, slot 0
      squares += x * x;
    }
    EXPECT_NEAR(got[0], std::sqrt(squares), kHeadDim * 0x1p-24 * std::sqrt(squares));
    EXPECT_EQ(got[1], kBefore);
    EXPECT_EQ(got[2], kInfinity);
    EXPECT_EQ(std::vector<float>(got.begin() + kKvHeads, got.end()), no_heads);
  }
}

TEST(QkvPostRefusalTest, NamesWhatItCannotDo) {
  const auto device = testing::MakeDevice();
  DeviceFloats x(*device, DType::kF32, Normal(1, 16));
  DeviceArray<int64_t> slots(*device, std::vector<int64_t>{0});
  EXPECT_THAT(
      std::string(QkvPost(*device, {.query = x.View({1, 1, 3}),
                                    .kv_cache = x.View({1, 2, 1, 2, 3}),
                                    .qkv = x.View({1, 9}),
                                    .slot_mapping = TensorView(slots.data(), DType::kI64, {1})})
                      .message()),
      HasSubstr("kv_cache: want keys and values of an even size on CUDA, got 3"));
}

}  // namespace
}  // namespace quire::kernels::cuda
