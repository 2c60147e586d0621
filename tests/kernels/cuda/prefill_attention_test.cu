// Tests PrefillAttnKernel (kernels/cuda/prefill_attention.cuh) by PagedAttentionOp against float64,
// with chosen cases, and with random cases that use every instance.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/paged_attention.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/paged_attention_testing.h"

namespace quire::testing {
namespace {

using kernels::AttentionPattern;
using kernels::DType;
using kernels::cuda::kPrefillRowTiles;
using kernels::cuda::PrefillAttention;

AttentionAnswer CheckWithWgmma(const AttentionCase& c, uint64_t seed = 1, double* worst = nullptr) {
  return CheckInEveryOrder(c, {.seed = seed, .worst = worst, .prefill = PrefillAttention::kWgmma});
}

class CudaPrefillAttentionTest : public ::testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    const auto device = MakeDevice();
    if (!kernels::cuda::PagedAttentionOp::Check(*device, PrefillAttention::kWgmma).ok()) {
      GTEST_SKIP() << "needs compute capability 9.0";
    }
  }
};

TEST_P(CudaPrefillAttentionTest, AgreesWithDoublesInEveryThreadOrder) {
  const AttentionAnswer answer = CheckWithWgmma(GetParam());
  EXPECT_EQ(answer.row_tiles.back(), kPrefillRowTiles);
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
        AttentionCase{.sequences = {{300, 40}},
                      .num_heads = 2,
                      .head_dim = 128,
                      .pattern = AttentionPattern::Chunk(32),
                      .soft_cap = 2.0f,
                      .scale = 0.3f,
                      .alibi = true}));

}  // namespace
}  // namespace quire::testing
