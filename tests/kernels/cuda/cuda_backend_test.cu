// What CudaBackend adds to its ops: prepared weights, memory, plans, and what it refuses.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/emulated_device.h"
#include "kernels/cuda/ops.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::Decode;
using testing::Encode;
using ::testing::HasSubstr;
using testing::kFloats;
using testing::RandomWeight;

std::unique_ptr<Backend> MakeBackend(const CudaBackendOptions& options = {}) {
  return *CreateCudaBackend(testing::MakeDevice(), options);
}

TEST(CudaBackendTest, PreparesEveryWeightTypeAndStacksParts) {
  for (const DType dtype : kFloats) {
    const auto backend = MakeBackend({.activation_dtype = dtype});
    for (const WeightType type : testing::kAllWeightTypes) {
      SCOPED_TRACE(Traits(type).name);
      const testing::TestWeight first = RandomWeight(type, 3, 256, 1);
      const testing::TestWeight second = RandomWeight(WeightType::kF32, 2, 256, 2);
      const std::vector<WeightView> parts = {first.view, second.view};
      const auto weight = *backend->PrepareWeight(parts);
      EXPECT_EQ(weight->rows(), 5);
      EXPECT_EQ(weight->bytes(), 5 * 256 * SizeOf(dtype));
      std::vector<float> values = first.values;
      values.insert(values.end(), second.values.begin(), second.values.end());

      const std::vector<int32_t> rows = {0, 1, 2, 3, 4};
      const DeviceBuffer ids = *backend->Allocate(20), out = *backend->Allocate(weight->bytes());
      ASSERT_TRUE(backend->CopyToDevice(ids.data(), rows.data(), 20).ok());
      ASSERT_TRUE(backend
                      ->Embed({.out = TensorView(out.data(), dtype, {5, 256}),
                               .token_ids = TensorView(ids.data(), DType::kI32, {5}),
                               .weight = weight.get()})
                      .ok());
      std::vector<uint8_t> got(static_cast<size_t>(weight->bytes()));
      ASSERT_TRUE(backend->CopyToHost(got.data(), out.data(), weight->bytes()).ok());
      EXPECT_EQ(Decode(dtype, got), Decode(dtype, Encode(dtype, values)));
    }
  }
}

TEST(CudaBackendTest, AllocatesZeroesAndRefusesPartsOfOtherWidths) {
  const auto backend = MakeBackend();
  for (const int64_t bytes : {int64_t{0}, int64_t{5}, int64_t{70000}}) {
    const DeviceBuffer buffer = *backend->Allocate(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    std::vector<char> got(static_cast<size_t>(bytes), 1);
    ASSERT_TRUE(backend->CopyToHost(got.data(), buffer.data(), bytes).ok());
    EXPECT_EQ(got, std::vector<char>(static_cast<size_t>(bytes)));
  }
  const testing::TestWeight a = RandomWeight(WeightType::kF32, 2, 64, 1);
  const testing::TestWeight b = RandomWeight(WeightType::kF32, 2, 32, 1);
  const std::vector<WeightView> parts = {a.view, b.view};
  EXPECT_THAT(std::string(backend->PrepareWeight(parts).status().message()),
              HasSubstr("parts: want 64 cols, got 32"));
}

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

TEST(CudaBackendTest, AttentionTakesTensorCoresWhereThereIsAKernelAndIsTheSameElsewhere) {
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

TEST(CudaBackendTest, HoldsAStepToItsPlan) {
  const auto backend = MakeBackend();
  const std::vector<int32_t> contexts = {20}, queries = {1};
  AttentionPlanArgs step{.context_lens = contexts,
                         .query_lens = queries,
                         .num_heads = 2,
                         .num_kv_heads = 1,
                         .head_dim = 8};
  const DeviceBuffer memory = *backend->Allocate(4096);
  PagedAttentionArgs args{.out = TensorView(memory.data(), DType::kF32, {1, 2, 8}),
                          .query = TensorView(memory.data(), DType::kF32, {1, 2, 8}),
                          .kv_cache = TensorView(memory.data(), DType::kF32, {2, 2, 1, 16, 8}),
                          .block_table = TensorView(memory.data(), DType::kI32, {1, 1}),
                          .context_lens = TensorView(memory.data(), DType::kI32, {1}),
                          .query_starts = TensorView(memory.data(), DType::kI32, {2}),
                          .scale = 1.0f,
                          .plan = *backend->Plan(step)};
  EXPECT_THAT(std::string(backend->PagedAttention(args).message()),
              HasSubstr("block_table: want blocks for 20 tokens of sequence 0, got 16"));
  args.window = 4;
  EXPECT_THAT(std::string(backend->PagedAttention(args).message()),
              HasSubstr("plan: want one for 1 sequences"));
  step.num_kv_heads = 3;
  EXPECT_THAT(std::string(backend->Plan(step).status().message()),
              HasSubstr("num_heads a positive multiple of num_kv_heads, got 2 and 3"));
}

TEST(CudaBackendTest, RefusesChipsAndDtypesByName) {
  EXPECT_THAT(
      std::string(CreateCudaBackend(std::make_unique<emulator::EmulatedDevice>(
                                        emulator::EmulatorOptions{.compute_capability = 75}))
                      .status()
                      .message()),
      HasSubstr("device: want compute capability 8.0 or later, got 7.5"));
  EXPECT_THAT(
      std::string(CreateCudaBackend(testing::MakeDevice(), {.activation_dtype = DType::kI32})
                      .status()
                      .message()),
      HasSubstr("activation_dtype: want f32|f16|bf16, got int32"));
}

}  // namespace
}  // namespace quire::kernels::cuda
