// Tests the counts of bank conflicts and sectors, on patterns whose costs are known, and asserts
// that attention and the kernels of matrix products have no bank conflicts.

#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/primitives.cuh"
#include "kernels/cuda/emulator/emulated_device.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/moe_testing.h"

namespace quire::testing {
namespace {

using namespace kernels::cuda;
using emulator::Access;
using emulator::AccessCount;
using emulator::AccessCounts;
using emulator::EmulatedDevice;

struct Params {
  float* memory;
  int stride;  // in words
};

__global__ void LoadsMatrices(const __grid_constant__ Params p) {
  const auto row = static_cast<int>(threadIdx.x);
  uint32_t r[4];
  for (int i = 0; i < 2; ++i) LdMatrix(r, DynamicShared<uint32_t>() + row * p.stride);
}

__global__ void StoresPairs(const __grid_constant__ Params p) {
  StoreVector(DynamicShared<float>() + static_cast<int>(threadIdx.x) * p.stride,
              make_float2(0.0f, 0.0f));
}

__global__ void LoadsWords(const __grid_constant__ Params p) {
  LoadReadOnly<float>(p.memory + static_cast<int>(threadIdx.x) * p.stride);
}

// Only odd lanes store.
__global__ void OddLanesStore(const __grid_constant__ Params p) {
  if (threadIdx.x % 2 == 1) StoreVector(p.memory + threadIdx.x, 1.0f);
}

// Even lanes make one more copy than odd lanes before the lanes meet.
__global__ void CopiesQuads(const __grid_constant__ Params p) {
  float* const to = DynamicShared<float>() + static_cast<int>(threadIdx.x) * 4;
  for (unsigned i = 0; i < 2 - threadIdx.x % 2; ++i) {
    CpAsync<16>(to, p.memory + static_cast<int>(threadIdx.x) * p.stride, threadIdx.x < 16);
  }
  CpAsyncCommit();
  CpAsyncWait<0>();
  __syncwarp();
  CpAsync<16>(to, p.memory, true);
  CpAsyncCommit();
  CpAsyncWait<0>();
}

AccessCount CountOf(void (*kernel)(Params), int stride, Access access, unsigned threads = 32) {
  EmulatedDevice device({.counts_accesses = true});
  DeviceArray<float> memory(device, std::vector<float>(4096));
  EXPECT_TRUE(Launch(device, {.block = {threads}, .shared_bytes = 32 << 10}, kernel,
                     {.memory = memory.data(), .stride = stride})
                  .ok());
  EXPECT_TRUE(device.Synchronize().ok());
  EXPECT_EQ(device.access_counts().size(), 1u);
  AccessCounts counts = device.access_counts().at(reinterpret_cast<const void*>(kernel));
  return counts[access];
}

void ExpectCount(const AccessCount& got, int64_t instructions, int64_t cost, int64_t least) {
  EXPECT_EQ(got.instructions, instructions);
  EXPECT_EQ(got.cost, cost);
  EXPECT_EQ(got.least, least);
}

TEST(AccessCounterTest, RowsOfMatricesInTheSameBanksConflict) {
  ExpectCount(CountOf(&LoadsMatrices, 4, Access::kLdMatrix), 2, 8, 8);        // adjacent rows
  ExpectCount(CountOf(&LoadsMatrices, 32, Access::kLdMatrix), 2, 64, 8);      // eight ways
  ExpectCount(CountOf(&LoadsMatrices, 36, Access::kLdMatrix), 2, 8, 8);       // padded
  ExpectCount(CountOf(&LoadsMatrices, 8, Access::kLdMatrix), 2, 16, 8);       // two ways
  ExpectCount(CountOf(&LoadsMatrices, 0, Access::kLdMatrix), 2, 8, 8);        // one row for all
  ExpectCount(CountOf(&LoadsMatrices, 4, Access::kLdMatrix, 64), 4, 16, 16);  // two warps
}

TEST(AccessCounterTest, StoresOfEightBytesGoByHalfWarps) {
  ExpectCount(CountOf(&StoresPairs, 2, Access::kSharedStore), 1, 2, 2);
  ExpectCount(CountOf(&StoresPairs, 4, Access::kSharedStore), 1, 4, 2);
  ExpectCount(CountOf(&StoresPairs, 32, Access::kSharedStore), 1, 32, 2);
  ExpectCount(CountOf(&StoresPairs, 2, Access::kGlobalStore), 0, 0, 0);
}

TEST(AccessCounterTest, SectorsThatAWarpTouches) {
  ExpectCount(CountOf(&LoadsWords, 1, Access::kGlobalLoad), 1, 4, 4);
  ExpectCount(CountOf(&LoadsWords, 2, Access::kGlobalLoad), 1, 8, 4);
  ExpectCount(CountOf(&LoadsWords, 32, Access::kGlobalLoad), 1, 32, 4);
  ExpectCount(CountOf(&LoadsWords, 0, Access::kGlobalLoad), 1, 1, 1);
  ExpectCount(CountOf(&OddLanesStore, 0, Access::kGlobalStore), 1, 4, 2);
}

// The copies that are not valid read nothing. After the lanes have met, the counts of their
// accesses begin anew.
TEST(AccessCounterTest, LanesThatDivergeAreCountedTogetherAgainOnceTheyMeet) {
  ExpectCount(CountOf(&CopiesQuads, 4, Access::kCopyTarget), 3, 12, 12);
  ExpectCount(CountOf(&CopiesQuads, 4, Access::kCopySource), 3, 8 + 8 + 1, 8 + 4 + 1);
}

// The instructions of all kernels together.
struct SharedAccesses {
  int64_t loads = 0, stores = 0, copies = 0;
};

// Expects that no access of a kernel to shared memory conflicts.
SharedAccesses ExpectNoConflicts(const EmulatedDevice& device) {
  SharedAccesses all;
  for (auto [kernel, counts] : device.access_counts()) {
    for (const Access access : {Access::kLdMatrix, Access::kSharedStore, Access::kCopyTarget}) {
      EXPECT_EQ(counts[access].excess(), 0) << static_cast<int>(access);
    }
    all.loads += counts[Access::kLdMatrix].instructions;
    all.stores += counts[Access::kSharedStore].instructions;
    all.copies += counts[Access::kCopyTarget].instructions;
  }
  return all;
}

// Runs attention of this shape, once as a decode that is cut into pieces and once as a prompt.
void CheckAttention(kernels::DType cache_dtype, int32_t head_dim, int32_t num_heads,
                    MatrixInstruction prefill = MatrixInstruction::kMma) {
  SCOPED_TRACE(head_dim);
  SCOPED_TRACE(num_heads);
  EmulatedDevice device({.counts_accesses = true});
  const AttentionBatch batch({.sequences = {{300, 1}, {70, 20}},
                              .num_heads = num_heads,
                              .num_kv_heads = 1,
                              .head_dim = head_dim,
                              .cache_dtype = cache_dtype});
  AttentionOnDevice on_device(device, batch);
  PagedAttentionOp op(device, {}, prefill);
  const auto plan = op.Plan(batch.PlanArgs());
  ASSERT_TRUE(plan.ok());
  on_device.args.plan = *plan;
  ASSERT_TRUE(op.Run(on_device.args).ok());
  ASSERT_TRUE(device.Synchronize().ok());
  const SharedAccesses all = ExpectNoConflicts(device);
  EXPECT_GT(all.loads, 0);
  EXPECT_GT(all.copies, 0);
  // With 60 heads, all items have at least four row tiles. Then each warp has its rows for itself
  // and exchanges nothing. Wide items of an fp8 cache store what they widen, and so do prompts on
  // wgmma.
  const bool widens = cache_dtype == kernels::DType::kF8E4M3 &&
                      (HasWideItems(head_dim) || prefill == MatrixInstruction::kWgmma);
  EXPECT_EQ(all.stores > 0, num_heads < 60 || widens);
  // A key of a head is contiguous, and so are the rows of an output.
  for (auto [kernel, counts] : device.access_counts()) {
    EXPECT_EQ(counts[Access::kCopySource].excess(), 0);
  }
}

TEST(AccessCounterTest, AttentionHasNoBankConflicts) {
  for (const int32_t head_dim : {32, 64, 80, 96, 112, 128, 256}) {
    for (const int32_t num_heads : {4, 17, 60}) {
      CheckAttention(kernels::DType::kBF16, head_dim, num_heads);
    }
  }
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t num_heads : {4, 17, 60}) {
      CheckAttention(kernels::DType::kF8E4M3, head_dim, num_heads);
      CheckAttention(kernels::DType::kF8E4M3, head_dim, num_heads, MatrixInstruction::kWgmma);
    }
  }
}

// The types of weights that stay packed.
constexpr kernels::WeightType kPackedTypes[] = {
    kernels::WeightType::kQ4_0, kernels::WeightType::kQ4_1, kernels::WeightType::kQ5_0,
    kernels::WeightType::kQ5_1, kernels::WeightType::kQ8_0, kernels::WeightType::kQ4_K,
    kernels::WeightType::kQ5_K, kernels::WeightType::kQ6_K, kernels::WeightType::kF8E4M3Scaled};

// A backend on a device that counts accesses.
struct CountingBackend {
  explicit CountingBackend(kernels::DType dtype) {
    auto owned =
        std::make_unique<EmulatedDevice>(emulator::EmulatorOptions{.counts_accesses = true});
    device = owned.get();
    backend = *CreateCudaBackend(std::move(owned), {.activation_dtype = dtype});
  }

  EmulatedDevice* device;
  std::unique_ptr<kernels::Backend> backend;
};

// Not for the kernel of more than 16 tokens: there, some lanes copy once more than others at a
// line, and the copies that count as one instruction are not of one.
TEST(AccessCounterTest, ThePackedGemmsHaveNoBankConflicts) {
  constexpr int64_t kRows = 32, kCols = 512;
  for (const kernels::WeightType type : kPackedTypes) {
    for (const int64_t num_tokens : {1, 16}) {
      SCOPED_TRACE(::testing::Message() << Traits(type).name << ", " << num_tokens << " tokens");
      const CountingBackend counting(kernels::DType::kF16);
      const TestWeight weight = RandomWeight(type, kRows, kCols, 1);
      const auto prepared = *counting.backend->PrepareWeight({&weight.view, 1});
      const auto zeros = [&](int64_t cols) {
        return DeviceFloats(*counting.device, kernels::DType::kF16,
                            std::vector<float>(num_tokens * cols));
      };
      DeviceFloats input = zeros(kCols), out = zeros(kRows);
      ASSERT_TRUE(counting.backend
                      ->Linear({.out = out.View({num_tokens, kRows}),
                                .input = input.View({num_tokens, kCols}),
                                .weight = prepared.get()})
                      .ok());
      ASSERT_TRUE(counting.backend->Synchronize().ok());
      EXPECT_GT(ExpectNoConflicts(*counting.device).copies, 0);
    }
  }
}

// With 40 tokens, experts have tiles of 64 rows, and with 140 tiles of 128 rows.
TEST(AccessCounterTest, TheGroupedGemmsHaveNoBankConflicts) {
  std::vector<kernels::WeightType> types = {kernels::WeightType::kF16};
  types.insert(types.end(), std::begin(kPackedTypes), std::end(kPackedTypes));
  for (const kernels::WeightType type : types) {
    for (const int64_t num_tokens : {2, 40, 140}) {
      if (num_tokens == 140 && type != kernels::WeightType::kF16) continue;
      SCOPED_TRACE(::testing::Message() << Traits(type).name << ", " << num_tokens << " tokens");
      const CountingBackend counting(kernels::DType::kF16);
      const TestMixture mixture(type, {.num_experts = 2, .hidden = 256, .intermediate = 256}, 1);
      RunMixture(*counting.backend, mixture.Prepare(*counting.backend), mixture.shape(),
                 Normal(1, num_tokens * mixture.shape().hidden, 0.02f));
      const SharedAccesses all = ExpectNoConflicts(*counting.device);
      EXPECT_GT(all.copies, 0);
      EXPECT_EQ(all.loads > 0, type == kernels::WeightType::kF16);
    }
  }
}

}  // namespace
}  // namespace quire::testing
