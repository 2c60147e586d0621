// Tests PrefillAttnKernel (kernels/cuda/attention/prefill_attention.cuh) by PagedAttentionOp
// against float64, with chosen cases, and with random cases that use every instance.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/attention/attn_merge.cuh"
#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/paged_attention_testing.h"

namespace quire::testing {
namespace {

using kernels::AttentionPattern;
using kernels::DType;
using kernels::cuda::Bf16;
using kernels::cuda::ForwardingDevice;
using kernels::cuda::kPrefillRowTiles;
using kernels::cuda::MatrixInstruction;

AttentionAnswer CheckWithWgmma(const AttentionCase& c, uint64_t seed = 1, double* worst = nullptr) {
  return CheckInEveryOrder(c, {.seed = seed, .worst = worst, .prefill = MatrixInstruction::kWgmma});
}

class CudaPrefillAttentionBatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto device = MakeDevice();
    if (!HasInstruction(device->info(), MatrixInstruction::kWgmma)) {
      GTEST_SKIP() << "needs compute capability 9.0";
    }
  }
};

class CudaPrefillAttentionTest : public CudaPrefillAttentionBatchTest,
                                 public ::testing::WithParamInterface<AttentionCase> {};

TEST_P(CudaPrefillAttentionTest, AgreesWithDoublesInEveryThreadOrder) {
  const AttentionAnswer answer = CheckWithWgmma(GetParam());
  EXPECT_TRUE(answer.prefill);
}

constexpr DType kF16 = DType::kF16;
INSTANTIATE_TEST_SUITE_P(
    Cases, CudaPrefillAttentionTest,
    ::testing::Values(
        // One step has a whole prompt, a chunk of a longer prompt, and decodes.
        AttentionCase{.sequences = {{40, 40}, {300, 30}, {200, 1}, {17, 2}},
                      .num_heads = 8,
                      .num_kv_heads = 2,
                      .head_dim = 128},
        AttentionCase{.sequences = {{150, 150}, {140, 70}}, .num_heads = 1, .block_size = 64},
        AttentionCase{.sequences = {{129, 33}}, .num_heads = 2, .head_dim = 256, .dtype = kF16},
        // A block has more keys than a tile, and its end is missing.
        AttentionCase{.sequences = {{200, 40}}, .head_dim = 256, .block_size = 128},
        AttentionCase{.sequences = {{70, 70}},
                      .num_heads = 4,
                      .num_kv_heads = 4,
                      .head_dim = 128,
                      .block_size = 32,
                      .dtype = kF16,
                      .alibi = true,
                      .sinks = true},
        // The first key of the window, and the last one, lie within blocks, in one case the same.
        AttentionCase{.sequences = {{400, 90}, {165, 65}},
                      .num_heads = 2,
                      .pattern = AttentionPattern::Window(37)},
        AttentionCase{.sequences = {{190, 70}},
                      .num_heads = 1,
                      .block_size = 128,
                      .pattern = AttentionPattern::Window(3)},
        // All keys that the queries see are in the middle of one block.
        AttentionCase{.sequences = {{120, 4}},
                      .num_heads = 32,
                      .block_size = 128,
                      .pattern = AttentionPattern::Window(50)},
        // The window begins within a block, and the tile with that block is not among the first.
        AttentionCase{
            .sequences = {{560, 70}}, .num_heads = 1, .pattern = AttentionPattern::Window(401)},
        AttentionCase{.sequences = {{300, 40}},
                      .num_heads = 2,
                      .head_dim = 128,
                      .pattern = AttentionPattern::Chunk(32),
                      .soft_cap = 2.0f,
                      .scale = 0.3f,
                      .alibi = true}));

// Both kernels, for caches of 16 bits and of e4m3.
class CudaPrefillCachesTest : public CudaPrefillAttentionBatchTest,
                              public ::testing::WithParamInterface<bool> {
 protected:
  static AttentionCase WithCache(const AttentionCase& c, uint64_t seed) {
    return GetParam() ? WithScales(c, SomeCacheScales(seed)) : c;
  }
};
INSTANTIATE_TEST_SUITE_P(Fp8, CudaPrefillCachesTest, ::testing::Bool());

// The cases of the other kernel, with as many queries as make more than 64 rows where the context
// is long enough.
TEST_P(CudaPrefillCachesTest, CasesOfTheOtherKernelAgreeWithDoubles) {
  int num_prefills = 0;
  double worst = 0.0;
  for (const AttentionCase& chosen : ChosenAttentionCases()) {
    AttentionCase c = WithCache(chosen, static_cast<uint64_t>(num_prefills));
    c.fixed_split_keys = 0;
    const int32_t fewest = 64 / (c.num_heads / c.num_kv_heads) + 2;
    for (AttentionSequence& sequence : c.sequences) {
      if (sequence.query_len == 0) continue;
      sequence.query_len = std::min(sequence.context_len, std::max(sequence.query_len, fewest));
    }
    SCOPED_TRACE(::testing::Message() << c);
    const AttentionAnswer answer = CheckWithWgmma(c, 1, &worst);
    num_prefills += answer.prefill ? 1 : 0;
    if (HasFailure()) return;
  }
  std::printf("the worst error %.2f of its bound\n", worst);
  EXPECT_EQ(num_prefills, std::ssize(ChosenAttentionCases()));
}

TEST_P(CudaPrefillCachesTest, AnyMixOfFeaturesAgreesWithDoublesOnEveryKernel) {
  constexpr uint64_t kCases = QUIRE_RANDOM_CASES;
  constexpr int32_t kHeadDims[] = {64, 128, 256}, kRowTiles[] = {kPrefillRowTiles};
  double worst = 0.0;
  int32_t num_mixed = 0;
  std::set<std::tuple<DType, int32_t, int32_t>> shapes_seen;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const AttentionCase c =
        WithCache(RandomAttentionCase(seed, kHeadDims, kRowTiles).attention, seed / 2);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << c);
    const AttentionAnswer answer = CheckWithWgmma(c, seed, &worst);
    EXPECT_TRUE(answer.prefill);
    num_mixed += answer.num_parts > 1 ? 1 : 0;
    shapes_seen.insert({c.dtype, c.head_dim, c.block_size});
    if (HasFailure()) return;
  }
  std::printf("%d cases, %d on both kernels, the worst error %.2f of its bound\n",
              static_cast<int>(kCases), num_mixed, worst);
  if (kCases < 24) return;
  EXPECT_GT(num_mixed, 0);
  EXPECT_EQ(shapes_seen.size(), 24u);
}

// Keeps the parameters of the last merge.
class MergeLog final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch& launch) override {
    if (launch.kernel == reinterpret_cast<const void*>(&kernels::cuda::AttnMergeKernel<Bf16>)) {
      std::memcpy(&params, launch.params.data(), sizeof(params));
    }
    return ForwardingDevice::LaunchKernel(launch);
  }

  kernels::cuda::AttnMergeParams<Bf16> params = {};
};

// Returns the log-sum-exp in base 2 of each row that was cut into pieces, by sequence, KV head and
// row.
std::map<std::tuple<int32_t, int32_t, int32_t>, double> LogSumExps(const AttentionCase& c,
                                                                   MatrixInstruction prefill) {
  const auto device = MakeDevice();
  MergeLog log(*device);
  const AttentionBatch batch(c);
  AttentionOnDevice on_device(*device, batch);
  kernels::cuda::PagedAttentionOp op(log, {}, prefill);
  const auto plan = op.Plan(batch.PlanArgs());
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  on_device.args.plan = *plan;
  EXPECT_TRUE(op.Run(on_device.args).ok());
  const auto& cuda_plan = static_cast<const kernels::cuda::CudaAttentionPlan&>(**plan);
  std::vector<float> partial(static_cast<size_t>(cuda_plan.num_partial_rows()));
  EXPECT_TRUE(device
                  ->CopyToHost(partial.data(), log.params.partial_lse,
                               static_cast<int64_t>(partial.size() * sizeof(float)))
                  .ok());
  EXPECT_TRUE(device->Synchronize().ok());
  std::map<std::tuple<int32_t, int32_t, int32_t>, double> found;
  for (const auto& merge : cuda_plan.merges()) {
    for (int32_t row = 0; row < merge.num_rows; ++row) {
      double sum = 0.0;
      for (int32_t i = 0; i < merge.num_items; ++i) {
        sum += std::exp2(partial[static_cast<size_t>(merge.partial + i * merge.num_rows + row)]);
      }
      found[{merge.seq, merge.kv_head, merge.first_row + row}] = std::log2(sum);
    }
  }
  return found;
}

TEST_F(CudaPrefillAttentionBatchTest, BothKernelsLeaveTheSameLogSumExps) {
  // Both kernels cut all units of the step.
  const AttentionCase c{
      .sequences = {{1000, 40}}, .num_heads = 4, .num_kv_heads = 2, .alibi = true};
  const auto mma = LogSumExps(c, MatrixInstruction::kMma);
  const auto wgmma = LogSumExps(c, MatrixInstruction::kWgmma);
  ASSERT_EQ(wgmma.size(), 2u * 2 * 40);
  ASSERT_EQ(mma.size(), wgmma.size());
  // Queries and keys are below 5, so the magnitudes of a score's products add up to less than 25 *
  // sqrt(head_dim). The rounding errors of a score and of the sum of up to 1000 weights change the
  // logarithm by at most this much in each kernel.
  constexpr double kEpsilon = 0x1p-23, kLog2E = 1.4427;
  const double bound = 2 * kLog2E * kEpsilon * ((64 + 6) * 25 * std::sqrt(64.0) + 1.2 * 1000);
  for (const auto& [row, lse] : wgmma) EXPECT_NEAR(lse, mma.at(row), bound);
}

}  // namespace
}  // namespace quire::testing
