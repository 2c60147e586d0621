// Tests the reference attention kernel against doubles, in three thread orders. One batch has
// prefill, chunks, decodes and an empty query, in blocks that are not neighbours.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/ops.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::AttentionBatch;
using testing::AttentionCase;
using testing::DeviceArray;
using testing::DeviceFloats;
using ::testing::HasSubstr;
using testing::Normal;

TEST(AttentionReferenceTest, AgreesWithDoublesInEveryThreadOrder) {
  constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
  // The tensor core kernels do not take most of these cases, because of the head dims, the block
  // size, float32, or a mix of dtypes.
  AttentionCase cases[] = {
      {.num_kv_heads = 2, .dtype = kF32},
      {.num_heads = 6, .head_dim = 8, .block_size = 5, .dtype = kF32},
      {.num_heads = 3, .num_kv_heads = 3, .head_dim = 40, .block_size = 128, .dtype = kF32},
      {.num_heads = 2, .head_dim = 256, .block_size = 1, .dtype = kF32},
      {.num_heads = 7, .head_dim = 16, .dtype = kF32, .scale = 0.3f, .alibi = true},
      {.num_kv_heads = 2, .alibi = true, .second_half = true},
      {.num_heads = 6, .head_dim = 16, .dtype = kF32, .alibi_is_rounded = true},
      {.num_kv_heads = 2, .dtype = kF16, .pattern = AttentionPattern::Window(20), .soft_cap = 5.0f},
      {.num_kv_heads = 2, .dtype = kF16, .pattern = AttentionPattern::Chunk(20)},
      {.num_kv_heads = 2,
       .cache_dtype = kF32,
       .pattern = AttentionPattern::Window(33),
       .scale = 1.0f / 64,
       .sinks = true},
      {.num_kv_heads = 2,
       .head_dim = 72,
       .dtype = kF32,
       .cache_dtype = kF16,
       .pattern = AttentionPattern::Window(7),
       .alibi = true,
       .sinks = true},
      {.num_kv_heads = 2, .head_dim = 72, .other_value_dim = 24, .block_size = 5, .dtype = kF32},
      {.num_heads = 6,
       .num_kv_heads = 2,
       .head_dim = 24,
       .other_value_dim = 200,
       .dtype = kF16,
       .cache_dtype = kBF16,
       .pattern = AttentionPattern::Window(33),
       .sinks = true},
      {.num_kv_heads = 2,
       .dtype = kF32,
       .cache_dtype = kBF16,
       .soft_cap = 2.0f,
       .scale = 0.3f,
       .alibi = true},
      {.num_kv_heads = 2, .dtype = kF32, .cache_dtype = DType::kF8E4M3},
      {.num_kv_heads = 2,
       .head_dim = 24,
       .other_value_dim = 40,
       .dtype = kBF16,
       .cache_dtype = DType::kF8E4M3,
       .pattern = AttentionPattern::Window(33)},
      {.dtype = kF32,
       .cache_dtype = DType::kF8E4M3,
       .soft_cap = 2.0f,
       .scale = 40.0f,
       .cache_scales = {0.0037f, 0.23f},
       .alibi = true,
       .sinks = true},
      {.head_dim = 16,
       .dtype = kF32,
       .cache_dtype = DType::kF8E4M3,
       .scale = 0.02f,
       .cache_scales = {19.0f, 7.0f},
       .alibi_is_rounded = true},
      {.num_kv_heads = 2, .dtype = kF16, .pattern = AttentionPattern::Blocks(64, 1, 3, 1)},
      {.num_heads = 6,
       .num_kv_heads = 6,
       .head_dim = 40,
       .block_size = 5,
       .dtype = kF32,
       .pattern = AttentionPattern::Blocks(128, 1, 4, 1),
       .sinks = true},
      {.num_heads = 3, .dtype = kF32, .pattern = AttentionPattern::Blocks(64, 2, 5, 0)},
  };
  double worst = 0.0;
  for (AttentionCase& c : cases) {
    // The batch has a whole prompt, a chunk of a longer prompt, an empty query, and decodes at the
    // edges of a tile.
    c.sequences = {{37, 37}, {70, 9}, {5, 0}, {1, 1}, {32, 1}, {33, 1}, {100, 2}};
    // Longer chunks and decodes, whose heads see different blocks.
    if (c.pattern.has_holes()) {
      c.sequences.insert(c.sequences.end(), {{330, 12}, {448, 1}, {449, 1}, {700, 1}});
    }
    SCOPED_TRACE(::testing::Message() << c);
    const AttentionBatch batch(c);
    std::vector<float> first;
    for (const testing::ThreadOrder order : testing::kAllThreadOrders) {
      const auto device = testing::MakeDevice(order);
      testing::AttentionOnDevice on_device(*device, batch);
      const AttentionPlan plan;
      on_device.args.plan = &plan;
      const absl::Status status = AttentionReference(*device, on_device.args);
      EXPECT_TRUE(status.ok()) << status;
      const std::vector<float> out = on_device.out.ToHost();
      if (first.empty()) {
        first = out;
        worst = std::max(worst, batch.Check(out, testing::AttentionWeights::kFloat32));
      }
      EXPECT_TRUE(testing::SameBits(out, first)) << "thread order " << static_cast<int>(order);
    }
  }
  std::printf("%d cases, the worst error %.2f of its bound\n", static_cast<int>(std::size(cases)),
              worst);
}

TEST(AttentionReferenceRefusalTest, NamesWhatItCannotDo) {
  const auto device = testing::MakeDevice();
  DeviceFloats x(*device, DType::kF32, Normal(1, 512));
  DeviceArray<int32_t> index(*device, std::vector<int32_t>{0, 1});
  const AttentionPlan plan;
  PagedAttentionArgs args{.out = x.View({1, 2, 8}),
                          .query = x.View({1, 2, 8}),
                          .kv_cache = x.View({1, 2, 1, 4, 8}).WithRowStride(66),
                          .block_table = TensorView(index.data(), DType::kI32, {1, 1}),
                          .context_lens = TensorView(index.data() + 1, DType::kI32, {1}),
                          .query_starts = TensorView(index.data(), DType::kI32, {2}),
                          .scale = 1.0f,
                          .plan = &plan};
  const auto message = [&] { return std::string(AttentionReference(*device, args).message()); };
  EXPECT_THAT(message(), HasSubstr("want blocks a multiple of 16 bytes apart, got 66 elements"));
  args.kv_cache = x.View({1, 2, 1, 4, 8});
  args.alibi_slopes = x.View({3});
  EXPECT_THAT(message(), HasSubstr("alibi_slopes: want f32 [2], got f32 [3]"));
  args.alibi_slopes = TensorView();
  args.scale = std::nanf("");
  EXPECT_THAT(message(), HasSubstr("scale: want finite, got nan"));
  args.scale = 1.0f;
  args.soft_cap = INFINITY;
  EXPECT_THAT(message(), HasSubstr("soft_cap: want finite and >= 0, got inf"));
  args.soft_cap = 0.0f;
  args.out = args.query = x.View({1, 2, 12});
  EXPECT_THAT(message(), HasSubstr("key_dim a multiple of 8, at most 256, got 12"));
}

}  // namespace
}  // namespace quire::kernels::cuda
