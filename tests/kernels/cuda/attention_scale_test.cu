// Tests attention at the scale of a large GPU: a grid of 132 multiprocessors, which cuts a unit
// into more than a hundred pieces; many KV heads; and queries, outputs and partial results of more
// than 2^31 elements.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/math.h"
#include "kernels/cuda/attention/attn_merge.cuh"
#include "kernels/cuda/attention/fp8_attention.h"
#include "kernels/cuda/attention/paged_attention.cuh"
#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/attention/prefill_attention.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/emulator/emulated_device.h"
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
  MatrixInstruction prefill = MatrixInstruction::kMma;
};

class AttentionScaleTest : public ::testing::TestWithParam<ScaleCase> {};

TEST_P(AttentionScaleTest, AgreesWithDoublesOn132Multiprocessors) {
  const ScaleCase& scale = GetParam();
  emulator::EmulatedDevice device({.execution = {.order = scale.order}, .num_sms = 132});
  const AttentionBatch batch(scale.attention);
  AttentionOnDevice on_device(device, batch);
  PagedAttentionOp op(device, {.skips_far_keys = scale.attention.skips_far_keys}, scale.prefill);
  const auto plan = op.Plan(batch.PlanArgs());
  ASSERT_TRUE(plan.ok()) << plan.status();
  on_device.args.plan = *plan;
  ASSERT_TRUE(op.Run(on_device.args).ok());
  batch.Check(on_device.out.ToHost(), AttentionWeights::kRounded);
  const auto& cuda_plan = static_cast<const CudaAttentionPlan&>(**plan);
  EXPECT_EQ(std::ranges::any_of(cuda_plan.parts(), &CudaAttentionPlan::Part::prefill),
            scale.prefill == MatrixInstruction::kWgmma);
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
                                .prefill = MatrixInstruction::kWgmma},
                      // Items of each row tile, and wide ones.
                      ScaleCase{.attention = {.sequences = {{3000, 40}, {90, 20}, {700, 1}},
                                              .num_heads = 8,
                                              .num_kv_heads = 2,
                                              .head_dim = 64,
                                              .cache_dtype = kernels::DType::kF8E4M3},
                                .fewest_pieces = 6},
                      ScaleCase{.attention = {.sequences = {{3000, 40}, {90, 20}, {700, 1}},
                                              .num_heads = 8,
                                              .num_kv_heads = 2,
                                              .head_dim = 64},
                                .fewest_pieces = 6},
                      ScaleCase{.attention = {.sequences = {{3000, 1}, {90, 20}, {700, 1}},
                                              .num_heads = 8,
                                              .num_kv_heads = 2,
                                              .head_dim = 64,
                                              .alibi = true,
                                              .skips_far_keys = true},
                                .fewest_pieces = 6}));

// Two keys: the first is 64 in its first dimension, the second is 0. The values are 1 and 3. So a
// query of 64 in its first dimension gives 1, and a query of 0 gives 2.
constexpr int kHeadDim = 64, kBlockSize = 16, kNumKeys = 2;
// The row that begins at element 2^32.
constexpr int32_t kFar = static_cast<int32_t>((int64_t{1} << 32) / kHeadDim);

// Each has its own way from a row to its query.
enum class FarKernel : uint8_t { kFewRows, kWide, kFp8, kPrefill };

class FarAttentionTest : public ::testing::TestWithParam<FarKernel> {
 protected:
  FarAttentionTest() {
    // In bf16, or in e4m3.
    std::vector<uint16_t> row(kHeadDim);
    row[0] = F32ToBf16(64.0f);
    if (GetParam() == FarKernel::kFp8) {
      SetCache<uint8_t>(0x68, 0x38, 0x44);
    } else {
      SetCache<uint16_t>(row[0], F32ToBf16(1.0f), F32ToBf16(3.0f));
    }
    for (int64_t i = 0; i < num_rows_; ++i) {
      uint16_t* const to = FarRows(query_) + i * kHeadDim;
      EXPECT_TRUE(device_.CopyToDevice(to, row.data(), 2 * kHeadDim).ok());
    }
    EXPECT_TRUE(device_.Synchronize().ok());
  }

  template <typename T>
  void SetCache(T key, T first_value, T second_value) {
    std::vector<T> cache(2 * kBlockSize * kHeadDim);
    cache[0] = key;
    for (size_t i = 0; i < kHeadDim; ++i) {
      const size_t value = kBlockSize * kHeadDim + i;
      cache[value] = first_value;
      cache[value + kHeadDim] = second_value;
    }
    const auto bytes = static_cast<int64_t>(cache.size() * sizeof(T));
    EXPECT_TRUE(device_.CopyToDevice(cache_.data(), cache.data(), bytes).ok());
    EXPECT_TRUE(device_.Synchronize().ok());
  }

  // The rows of the token, in queries and outputs.
  template <typename T>
  T* FarRows(DeviceArray<T>& array) {
    return array.data() + int64_t{far_token_} * num_rows_ * kHeadDim;
  }
  // Returns as many rows as the item has.
  template <typename T>
  std::vector<T> ToHost(const T* from) {
    std::vector<T> values(static_cast<size_t>(num_rows_ * kHeadDim));
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    EXPECT_TRUE(device_.CopyToHost(values.data(), from, bytes).ok());
    const absl::Status status = device_.Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }

  // Runs one item, whose rows are the heads of token far_token_.
  absl::Status Attend(int32_t partial, float* partial_out, float* partial_lse) {
    DeviceArray<AttentionItem> items(device_,
                                     std::vector<AttentionItem>{{.seq = 0,
                                                                 .kv_head = 0,
                                                                 .first_row = 0,
                                                                 .num_rows = num_rows_,
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
    params.num_heads = params.group = num_rows_;
    params.max_blocks = 1;
    params.log2_block_size = 4;
    params.scale = params.value_factor = 1.0f;
    const absl::Status status = LaunchKernel(params);
    return status.ok() ? device_.Synchronize() : status;
  }
  absl::Status LaunchKernel(AttnParams<Bf16>& params) {
    if (GetParam() == FarKernel::kPrefill) return LaunchPrefill(params);
    if (GetParam() == FarKernel::kFp8) {
      const Fp8AttnInstance<Bf16>& fp8 = *FindFp8Attention<Bf16>(kHeadDim);
      params.block_bytes /= 2;
      params.scale = params.value_factor = fp8.factor;
      return Launch(device_, {.block = {kAttnThreads}, .shared_bytes = fp8.shared_bytes},
                    fp8.kernel, params);
    }
    return Launch(device_,
                  {.block = {kAttnThreads}, .shared_bytes = AttnShape<kHeadDim, 4>::kSharedBytes},
                  &AttnKernel<Bf16, kHeadDim, false>, params);
  }
  absl::Status LaunchPrefill(const AttnParams<Bf16>& params) {
    const PrefillInstance<Bf16>& prefill = *FindPrefill<Bf16>(kHeadDim, /*fp8=*/false);
    const auto map_of = [&](const uint16_t* data) {
      return *device_.MakeTensorMap({.data = data,
                                     .element_bytes = 2,
                                     .rank = 3,
                                     .dims = {kHeadDim, kBlockSize, 1},
                                     .strides = {2, kHeadDim * 2, params.block_bytes},
                                     .box = {64, kBlockSize, 1}});
    };
    return Launch(device_, {.block = {kPrefillThreads}, .shared_bytes = prefill.shared_bytes},
                  prefill.kernel,
                  {.keys = map_of(cache_.data()),
                   .values = map_of(cache_.data() + kBlockSize * kHeadDim),
                   .attn = params});
  }

  // More than 64 rows make a wide item.
  const int32_t num_rows_ =
      GetParam() == FarKernel::kWide || GetParam() == FarKernel::kPrefill ? 65 : 1;
  const int32_t far_token_ = base::CeilDiv(kFar, num_rows_);
  const int64_t num_elements_ = (int64_t{far_token_} + 1) * num_rows_ * kHeadDim;
  emulator::EmulatedDevice device_;
  DeviceArray<uint16_t> cache_{device_, 2 * kBlockSize* kHeadDim};
  DeviceArray<uint16_t> query_{device_, num_elements_};
  DeviceArray<uint16_t> out_{device_, num_elements_};
  DeviceArray<int32_t> block_table_{device_, std::vector<int32_t>{0}};
  DeviceArray<int32_t> query_starts_{device_, std::vector<int32_t>{far_token_, far_token_ + 1}};
};
INSTANTIATE_TEST_SUITE_P(Kernels, FarAttentionTest,
                         ::testing::Values(FarKernel::kFewRows, FarKernel::kWide, FarKernel::kFp8,
                                           FarKernel::kPrefill));

TEST_P(FarAttentionTest, QueriesAndOutputsBeyondTwoToThe31Elements) {
  ASSERT_TRUE(Attend(/*partial=*/-1, nullptr, nullptr).ok());
  EXPECT_THAT(ToHost(FarRows(out_)), ::testing::Each(F32ToBf16(1.0f)));
}

// The pieces are written far from the start and then merged from there.
TEST_P(FarAttentionTest, PartialResultsBeyondTwoToThe31Elements) {
  DeviceArray<float> partial_out(device_, (int64_t{kFar} + 2 * num_rows_) * kHeadDim);
  DeviceArray<float> partial_lse(device_, int64_t{kFar} + 2 * num_rows_);
  for (const int32_t piece : {0, num_rows_}) {
    ASSERT_TRUE(Attend(kFar + piece, partial_out.data(), partial_lse.data()).ok());
    EXPECT_THAT(ToHost(partial_out.data() + int64_t{kFar + piece} * kHeadDim),
                ::testing::Each(1.0f));
  }
  DeviceArray<AttentionMerge> merges(
      device_,
      std::vector<AttentionMerge>{{.num_rows = num_rows_, .partial = kFar, .num_items = 2}});
  AttnMergeParams<Bf16> params = {};
  params.out = reinterpret_cast<Bf16*>(out_.data());
  params.partial_out = partial_out.data();
  params.partial_lse = partial_lse.data();
  params.merges = merges.data();
  params.query_starts = query_starts_.data();
  params.num_heads = params.group = num_rows_;
  params.head_dim = kHeadDim;
  const auto merge_blocks = static_cast<unsigned>(base::CeilDiv(num_rows_, int32_t{kMergeWarps}));
  ASSERT_TRUE(Launch(device_, {.grid = {1, merge_blocks}, .block = {32 * kMergeWarps}},
                     &AttnMergeKernel<Bf16>, params)
                  .ok());
  EXPECT_THAT(ToHost(FarRows(out_)), ::testing::Each(F32ToBf16(1.0f)));
}

}  // namespace
}  // namespace quire::testing
