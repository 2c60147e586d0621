#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/cuda/hopper_prefill.cuh"

namespace quire::testing {
namespace {

using kernels::cuda::Bf16;

class HopperPrefillTest : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override {
    if (device_->info().compute_capability < 90) GTEST_SKIP() << "needs compute capability 9.0";
  }

  // Gives `c` the shape for which the kernel is instantiated, and runs the kernel on it. Compares
  // the output with float64.
  template <int kGroup, int kBlockSize, bool kAlibi>
  void Check(AttentionCase c) {
    c.num_heads = c.num_kv_heads * kGroup;
    c.head_dim = kPrefillHeadDim;
    c.block_size = kBlockSize;
    c.alibi = kAlibi;
    // The kernel multiplies all values of a tile by their weights. Values past the end get the
    // weight 0, but 0 times NaN is NaN.
    c.poisoned = false;
    const AttentionBatch batch(c);
    AttentionOnDevice on_device(*device_, batch);
    std::vector<PrefillWork> work;
    for (size_t seq = 0; seq < c.sequences.size(); ++seq) {
      for (int kv_head = 0; kv_head < c.num_kv_heads; ++kv_head) {
        for (int row = 0; row < c.sequences[seq].query_len * kGroup; row += kPrefillRows) {
          work.push_back({static_cast<int>(seq), kv_head, row});
        }
      }
    }
    DeviceArray<PrefillWork> device_work(*device_, work);
    const kernels::PagedAttentionArgs& args = on_device.args;
    const int64_t row = kPrefillHeadDim * 2, head = row * kBlockSize, half = head * c.num_kv_heads;
    const auto map = device_->MakeTensorMap(
        {.data = args.kv_cache.keys.raw(),
         .element_bytes = 2,
         .rank = 5,
         .dims = {kPrefillHeadDim, kBlockSize, c.num_kv_heads, 2, args.kv_cache.num_blocks()},
         .strides = {2, row, head, half, 2 * args.kv_cache.block_stride()},
         .box = {64, kBlockSize, 1, 1, 1}});
    ASSERT_TRUE(map.ok()) << map.status().ToString();
    const PrefillParams params = {.kv_cache = *map,
                                  .query = args.query.data<Bf16>(),
                                  .out = args.out.data<Bf16>(),
                                  .block_table = args.block_table.data<int32_t>(),
                                  .query_starts = args.query_starts.data<int32_t>(),
                                  .context_lens = args.context_lens.data<int32_t>(),
                                  .work = device_work.data(),
                                  .alibi_slopes = args.alibi_slopes.data<float>(),
                                  .num_heads = c.num_heads,
                                  .max_blocks_per_seq = static_cast<int>(args.block_table.dim(1)),
                                  .scale = args.scale};
    ASSERT_TRUE(kernels::cuda::Launch(*device_,
                                      {.grid = {static_cast<unsigned>(work.size())},
                                       .block = {kPrefillThreads},
                                       .shared_bytes = kPrefillSharedBytes},
                                      &HopperPrefillKernel<kGroup, kBlockSize, kAlibi>, params)
                    .ok());
    batch.Check(on_device.out.ToHost(), AttentionWeights::kRounded);
  }

  std::unique_ptr<kernels::cuda::Device> device_ = MakeDevice(GetParam());
};

// Tests one launch with a whole prompt, a chunk of a longer prompt, and a decode.
TEST_P(HopperPrefillTest, MixedBatchOfGroupedHeads) {
  Check<4, 16, false>({.sequences = {{40, 40}, {300, 30}, {200, 1}}, .num_kv_heads = 2});
}

TEST_P(HopperPrefillTest, MixedBatchWithAlibi) {
  Check<4, 16, true>({.sequences = {{40, 40}, {300, 30}, {200, 1}}, .num_kv_heads = 2});
}

TEST_P(HopperPrefillTest, LargeBlocksWithoutGroups) {
  Check<1, 64, true>({.sequences = {{150, 150}, {140, 20}}});
}

INSTANTIATE_TEST_SUITE_P(Orders, HopperPrefillTest, ::testing::ValuesIn(kAllThreadOrders));

}  // namespace
}  // namespace quire::testing
