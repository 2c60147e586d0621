// Tests how CudaBackend runs the attention of a step: on a tensor core kernel or on the plain
// kernel, and with plans whose steps are in flight.

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
    testing::DeviceLog log;
    auto owned = std::make_unique<testing::RecordingDevice>(log);
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
    ASSERT_FALSE(log.shared_bytes.empty());
    // The tensor core kernels keep three stages of keys and values in shared memory. The plain
    // kernel keeps one query per warp there.
    EXPECT_EQ(log.shared_bytes.front() > 4 * 256 * 4, path.tensor_cores);

    batch.Check(on_device.out.ToHost(), path.tensor_cores ? testing::AttentionWeights::kRounded
                                                          : testing::AttentionWeights::kFloat32);
  }
}

TEST(AttentionPathTest, ALargerPlanLeavesAlonePlansInFlight) {
  auto owned = std::make_unique<emulator::EmulatedDevice>();
  Device& device = *owned;
  const auto backend = *CreateCudaBackend(std::move(owned), {.activation_dtype = DType::kBF16});
  const auto batch_of = [](std::vector<testing::AttentionSequence> sequences) {
    return testing::AttentionBatch({.sequences = std::move(sequences),
                                    .num_kv_heads = 2,
                                    .head_dim = 64,
                                    .block_size = 16,
                                    .dtype = DType::kBF16,
                                    .cache_dtype = DType::kBF16});
  };
  // Both are cut, and the rows of the second have more partial results.
  const testing::AttentionBatch small = batch_of({{600, 1}}), large = batch_of({{600, 200}});
  testing::AttentionOnDevice first(device, small), second(device, large);
  first.args.plan = *backend->Plan(small.PlanArgs());
  ASSERT_TRUE(backend->PagedAttention(first.args).ok());
  second.args.plan = *backend->Plan(large.PlanArgs());
  ASSERT_TRUE(backend->PagedAttention(second.args).ok());
  EXPECT_TRUE(backend->Synchronize().ok()) << backend->Synchronize();
}

}  // namespace
}  // namespace quire::kernels::cuda
