// Which kernel CudaBackend takes for a step's attention.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/emulated_device.h"
#include "kernels/cuda/ops.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

// An emulated device that remembers the shared memory that kernels asked for.
class RecordingDevice final : public emulator::EmulatedDevice {
 public:
  explicit RecordingDevice(std::vector<int64_t>& shared_bytes) : shared_bytes_(shared_bytes) {}
  absl::Status LaunchKernel(const KernelLaunch& launch) override {
    shared_bytes_.push_back(launch.config.shared_bytes);
    return EmulatedDevice::LaunchKernel(launch);
  }

 private:
  std::vector<int64_t>& shared_bytes_;
};

struct AttentionPath {
  DType query, cache;
  int64_t head_dim, block_size;
  bool tensor_cores;
};

TEST(AttentionPathTest, IsTensorCoresWhereThereIsAKernelAndSaysTheSameElsewhere) {
  constexpr int32_t kTokens = 40, kContext = 45, kHeads = 4, kKvHeads = 2;
  for (const AttentionPath& path : {AttentionPath{DType::kBF16, DType::kBF16, 64, 16, true},
                                    AttentionPath{DType::kF16, DType::kF16, 80, 32, true},
                                    AttentionPath{DType::kBF16, DType::kBF16, 72, 16, false},
                                    AttentionPath{DType::kBF16, DType::kBF16, 64, 8, false},
                                    AttentionPath{DType::kBF16, DType::kF16, 64, 16, false},
                                    AttentionPath{DType::kF32, DType::kF32, 64, 16, false}}) {
    SCOPED_TRACE(path.head_dim);
    SCOPED_TRACE(Name(path.query));
    std::vector<int64_t> shared_bytes;
    auto owned = std::make_unique<RecordingDevice>(shared_bytes);
    Device& device = *owned;
    const auto backend = *CreateCudaBackend(std::move(owned), {.activation_dtype = path.query});

    const int64_t head_dim = path.head_dim, num_blocks = (kContext - 1) / path.block_size + 1;
    const int64_t query_size = kTokens * kHeads * head_dim;
    const int64_t cache_size = num_blocks * 2 * kKvHeads * path.block_size * head_dim;
    testing::DeviceFloats query(device, path.query, testing::Normal(1, query_size));
    testing::DeviceFloats cache(device, path.cache, testing::Normal(2, cache_size));
    testing::DeviceFloats out(device, path.query, query_size), want(device, path.query, query_size);
    std::vector<int32_t> blocks(static_cast<size_t>(num_blocks));
    std::iota(blocks.rbegin(), blocks.rend(), 0);
    testing::DeviceArray<int32_t> table(device, blocks);
    const std::vector<int32_t> contexts = {kContext}, queries = {kTokens};
    testing::DeviceArray<int32_t> context_lens(device, contexts),
        starts(device, std::vector<int32_t>{0, kTokens});
    PagedAttentionArgs args{
        .out = out.View({kTokens, kHeads, head_dim}),
        .query = query.View({kTokens, kHeads, head_dim}),
        .kv_cache = cache.View({num_blocks, 2, kKvHeads, path.block_size, head_dim}),
        .block_table = TensorView(table.data(), DType::kI32, {1, num_blocks}),
        .context_lens = TensorView(context_lens.data(), DType::kI32, {1}),
        .query_starts = TensorView(starts.data(), DType::kI32, {2}),
        .scale = 0.125f,
        .plan = *backend->Plan({.context_lens = contexts,
                                .query_lens = queries,
                                .num_heads = kHeads,
                                .num_kv_heads = kKvHeads,
                                .head_dim = static_cast<int32_t>(head_dim)})};
    ASSERT_TRUE(backend->PagedAttention(args).ok());
    ASSERT_FALSE(shared_bytes.empty());
    // The tensor core kernels hold three stages of keys and values there, the plain one a query a
    // warp.
    EXPECT_EQ(shared_bytes.front() > 4 * 256 * 4, path.tensor_cores);

    args.out = want.View({kTokens, kHeads, head_dim});
    ASSERT_TRUE(AttentionReference(device, args).ok());
    const std::vector<float> got = out.ToHost(), expected = want.ToHost();
    float largest = 0.0f;  // no output is larger than the values that it is a mean of
    for (const float value : cache.values) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < got.size(); ++i) {
      // Weights are rounded to the dtype on tensor cores, and both outputs.
      const double bound = path.tensor_cores ? 3.1 * testing::Rounding(path.query) * largest : 0.0;
      ASSERT_NEAR(got[i], expected[i], bound) << i;
    }
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
