// Tests which attention kernel CudaBackend chooses for a step: a tensor core kernel or the plain
// kernel.

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/recording_device.h"

namespace quire::kernels::cuda {
namespace {

struct AttentionPath {
  DType query, cache;
  int32_t head_dim, block_size;
  bool tensor_cores;
};

TEST(AttentionPathTest, IsTensorCoresWhereThereIsAKernel) {
  for (const AttentionPath& path : {AttentionPath{DType::kBF16, DType::kBF16, 64, 16, true},
                                    AttentionPath{DType::kF16, DType::kF16, 80, 32, true},
                                    AttentionPath{DType::kBF16, DType::kBF16, 72, 16, false},
                                    AttentionPath{DType::kBF16, DType::kBF16, 64, 8, false},
                                    AttentionPath{DType::kBF16, DType::kF16, 64, 16, false},
                                    AttentionPath{DType::kF32, DType::kF32, 64, 16, false}}) {
    SCOPED_TRACE(path.head_dim);
    SCOPED_TRACE(Name(path.query));
    std::vector<int64_t> shared_bytes;
    auto owned = std::make_unique<testing::RecordingDevice>(shared_bytes);
    Device& device = *owned;
    const auto backend = *CreateCudaBackend(std::move(owned), {.activation_dtype = path.query});

    const testing::AttentionBatch batch({.sequences = {{45, 40}},
                                         .num_kv_heads = 2,
                                         .head_dim = path.head_dim,
                                         .block_size = path.block_size,
                                         .dtype = path.query,
                                         .cache_dtype = path.cache});
    testing::AttentionOnDevice on_device(device, batch);
    on_device.args.plan = *backend->Plan(batch.PlanArgs());
    ASSERT_TRUE(backend->PagedAttention(on_device.args).ok());
    ASSERT_FALSE(shared_bytes.empty());
    // The tensor core kernels keep three stages of keys and values in shared memory. The plain
    // kernel keeps one query per warp there.
    EXPECT_EQ(shared_bytes.front() > 4 * 256 * 4, path.tensor_cores);

    batch.Check(on_device.out.ToHost(), path.tensor_cores ? testing::AttentionWeights::kRounded
                                                          : testing::AttentionWeights::kFloat32);
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
