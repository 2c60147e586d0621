// Tests attention at the scale of a large GPU: a grid of 132 multiprocessors, which cuts a unit
// into more than a hundred pieces; many KV heads; and queries, outputs and partial results of more
// than 2^31 elements.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/attn_merge.cuh"
#include "kernels/cuda/emulator/emulated_device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/paged_attention.cuh"
#include "kernels/cuda/paged_attention.h"
#include "kernels/quant/float16.h"
#include "tests/kernels/cuda/attention_testing.h"

namespace quire::testing {
namespace {

using namespace kernels::cuda;
using kernels::F32ToBf16;

struct ScaleCase {
  AttentionCase attention;
  emulator::ThreadOrder order = emulator::ThreadOrder::kForward;
  int32_t fewest_pieces = 0;  // of the merge with the most pieces
  PrefillAttention prefill = PrefillAttention::kMma;
};

class AttentionScaleTest : public ::testing::TestWithParam<ScaleCase> {};

TEST_P(AttentionScaleTest, AgreesWithDoublesOn132Multiprocessors) {
  const ScaleCase& scale = GetParam();
  emulator::EmulatedDevice device({.execution = {.order = scale.order}, .num_sms = 132});
  const AttentionBatch batch(scale.attention);
  AttentionOnDevice on_device(device, batch);
  PagedAttentionOp op(device, {}, scale.prefill);
  const auto plan = op.Plan(batch.PlanArgs());
  ASSERT_TRUE(plan.ok()) << plan.status();
  on_device.args.plan = *plan;
  ASSERT_TRUE(op.Run(on_device.args).ok());
  batch.Check(on_device.out.ToHost(), AttentionWeights::kRounded);
  const auto& cuda_plan = static_cast<const CudaAttentionPlan&>(**plan);
  EXPECT_EQ(std::ranges::any_of(cuda_plan.parts(), &CudaAttentionPlan::Part::prefill),
            scale.prefill == PrefillAttention::kWgmma);
  int32_t most_pieces = 0;
  for (const AttentionMerge& merge : cuda_plan.merges()) {
    most_pieces = std::max(most_pieces, merge.num_items);
  }
  EXPECT_GE(most_pieces, scale.fewest_pieces);
}

// One thread order for each case, because a case takes seconds.
INSTANTIATE_TEST_SUITE_P(
    Cases, AttentionScaleTest,
    ::testing::Values(ScaleCase{.attention = {.sequences = {{70001, 1}},
                                              .num_heads = 8,
                                              .num_kv_heads = 1,
                                              .head_dim = 64,
                                              .alibi = true,
                                              .poisoned = false},
                                .order = emulator::ThreadOrder::kRandom,
                                .fewest_pieces = 200},
                      ScaleCase{
                          .attention = {.sequences = {{9000, 1}, {300, 1}, {40, 40}, {2000, 3}},
                                        .num_heads = 32,
                                        .num_kv_heads = 8,
                                        .head_dim = 64},
                          .order = emulator::ThreadOrder::kReverse,
                          .fewest_pieces = 20},
                      ScaleCase{.attention = {.sequences = {{500, 1}, {130, 2}, {33, 1}},
                                              .num_heads = 32,
                                              .num_kv_heads = 32,
                                              .head_dim = 128,
                                              .sinks = true},
                                .fewest_pieces = 2},
                      ScaleCase{.attention = {.sequences = {{3000, 40}, {90, 90}},
                                              .num_heads = 8,
                                              .num_kv_heads = 2,
                                              .head_dim = 64},
                                .fewest_pieces = 6,
                                .prefill = PrefillAttention::kWgmma}));

// Two keys: the first is 64 in its first dimension, the second is 0. The values are 1 and 3. So a
// query of 64 in its first dimension gives 1, and a query of 0 gives 2.
constexpr int kHeadDim = 64, kBlockSize = 16, kNumKeys = 2;
// The row of queries, outputs and partial results that begins at element 2^32.
constexpr int32_t kFar = static_cast<int32_t>((int64_t{1} << 32) / kHeadDim);

class FarAttentionTest : public ::testing::Test {
 protected:
  FarAttentionTest() {
    std::vector<uint16_t> cache(2 * kBlockSize * kHeadDim), row(kHeadDim);
    cache[0] = row[0] = F32ToBf16(64.0f);
    for (size_t i = 0; i < kHeadDim; ++i) {
      const size_t value = kBlockSize * kHeadDim + i;
      cache[value] = F32ToBf16(1.0f);
      cache[value + kHeadDim] = F32ToBf16(3.0f);
    }
    EXPECT_TRUE(device_.CopyToDevice(cache_.data(), cache.data(), 2 * std::ssize(cache)).ok());
    EXPECT_TRUE(device_.CopyToDevice(FarRow(query_), row.data(), 2 * kHeadDim).ok());
    EXPECT_TRUE(device_.Synchronize().ok());
  }

  template <typename T>
  static T* FarRow(DeviceArray<T>& array) {
    return array.data() + int64_t{kFar} * kHeadDim;
  }
  template <typename T>
  std::vector<T> ToHost(const T* from, int64_t size) {
    std::vector<T> values(static_cast<size_t>(size));
    EXPECT_TRUE(
        device_.CopyToHost(values.data(), from, size * static_cast<int64_t>(sizeof(T))).ok());
    const absl::Status status = device_.Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }
  // Runs one item, whose query is token kFar of a sequence with one head.
  absl::Status Attend(int32_t partial, float* partial_out, float* partial_lse) {
    DeviceArray<AttentionItem> items(device_,
                                     std::vector<AttentionItem>{{.seq = 0,
                                                                 .kv_head = 0,
                                                                 .first_row = 0,
                                                                 .num_rows = 1,
                                                                 .key_begin = 0,
                                                                 .key_end = kNumKeys,
                                                                 .first_position = kNumKeys - 1,
                                                                 .partial = partial}});
    DeviceArray<int32_t> block_starts(device_, std::vector<int32_t>{0, 1});
    AttnParams<Bf16> params = {};
    params.out = reinterpret_cast<Bf16*>(out_.data());
    params.query = reinterpret_cast<const Bf16*>(query_.data());
    params.kv = cache_.data();
    params.block_table = block_table_.data();
    params.query_starts = query_starts_.data();
    params.items = items.data();
    params.block_starts = block_starts.data();
    params.partial_out = partial_out;
    params.partial_lse = partial_lse;
    params.value_offset = kBlockSize * kHeadDim;
    params.head_stride = kBlockSize * kHeadDim;
    params.block_bytes = 2 * 2 * kBlockSize * kHeadDim;
    params.num_heads = params.group = params.max_blocks = 1;
    params.log2_block_size = 4;
    params.scale = 1.0f;
    const absl::Status status = Launch(
        device_, {.block = {kAttnThreads}, .shared_bytes = AttnShape<kHeadDim, 1>::kSharedBytes},
        &AttnKernel<Bf16, kHeadDim, false>, params);
    return status.ok() ? device_.Synchronize() : status;
  }

  emulator::EmulatedDevice device_;
  DeviceArray<uint16_t> cache_{device_, 2 * kBlockSize* kHeadDim};
  DeviceArray<uint16_t> query_{device_, (int64_t{kFar} + 1) * kHeadDim};
  DeviceArray<uint16_t> out_{device_, (int64_t{kFar} + 1) * kHeadDim};
  DeviceArray<int32_t> block_table_{device_, std::vector<int32_t>{0}};
  DeviceArray<int32_t> query_starts_{device_, std::vector<int32_t>{kFar, kFar + 1}};
};

TEST_F(FarAttentionTest, QueriesAndOutputsBeyondTwoToThe31Elements) {
  ASSERT_TRUE(Attend(/*partial=*/-1, nullptr, nullptr).ok());
  EXPECT_THAT(ToHost(FarRow(out_), kHeadDim), ::testing::Each(F32ToBf16(1.0f)));
}

// The pieces are written far from the start and then merged from there.
TEST_F(FarAttentionTest, PartialResultsBeyondTwoToThe31Elements) {
  DeviceArray<float> partial_out(device_, (int64_t{kFar} + 2) * kHeadDim);
  DeviceArray<float> partial_lse(device_, int64_t{kFar} + 2);
  for (const int32_t piece : {0, 1}) {
    ASSERT_TRUE(Attend(kFar + piece, partial_out.data(), partial_lse.data()).ok());
    EXPECT_THAT(ToHost(FarRow(partial_out) + piece * kHeadDim, kHeadDim), ::testing::Each(1.0f));
  }
  DeviceArray<AttentionMerge> merges(
      device_, std::vector<AttentionMerge>{{.num_rows = 1, .partial = kFar, .num_items = 2}});
  AttnMergeParams<Bf16> params = {};
  params.out = reinterpret_cast<Bf16*>(out_.data());
  params.partial_out = partial_out.data();
  params.partial_lse = partial_lse.data();
  params.merges = merges.data();
  params.query_starts = query_starts_.data();
  params.num_heads = params.group = 1;
  params.head_dim = kHeadDim;
  ASSERT_TRUE(Launch(device_, {.block = {32 * kMergeWarps}}, &AttnMergeKernel<Bf16>, params).ok());
  EXPECT_THAT(ToHost(FarRow(out_), kHeadDim), ::testing::Each(F32ToBf16(1.0f)));
}

}  // namespace
}  // namespace quire::testing
