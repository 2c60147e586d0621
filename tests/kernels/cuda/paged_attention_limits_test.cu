// Tests the arguments that attention on tensor cores refuses, and a cache of more than 2^31
// elements.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/quant/float16.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::testing {
namespace {

using kernels::AttentionPattern;
using kernels::DType;
using kernels::PagedAttentionArgs;
using kernels::TensorView;
using kernels::cuda::Device;
using kernels::cuda::ForwardingDevice;
using kernels::cuda::PagedAttentionOp;
using ::testing::HasSubstr;

// Attends to two blocks of a cache of about 8 GiB. The blocks are `block_stride` elements apart,
// and `second` is the number of the second. Checks that the kernel reads both.
void ReadTwoBlocks(int64_t block_stride, int32_t second) {
  const auto device = MakeDevice();
  DeviceArray<uint16_t> kv(*device, (second + 1) * block_stride);
  const std::vector<uint16_t> keys(16 * 64, 0);  // keys of 0 all have the same weight
  std::vector<uint16_t> near(16 * 64), far(16 * 64);
  for (size_t i = 0; i < near.size(); ++i) {
    near[i] = kernels::F32ToBf16(1.0f);
    far[i] = kernels::F32ToBf16(3.0f);
  }
  const std::vector<int32_t> blocks = {1, second};
  for (size_t i = 0; i < blocks.size(); ++i) {
    uint16_t* const block = kv.data() + blocks[i] * block_stride;
    const std::vector<uint16_t>& values = i == 0 ? near : far;
    ASSERT_TRUE(device->CopyToDevice(block, keys.data(), 2 * 16 * 64).ok());
    ASSERT_TRUE(device->CopyToDevice(block + 16 * 64, values.data(), 2 * 16 * 64).ok());
  }
  const std::vector<int32_t> context = {32}, query_len = {1};
  DeviceFloats query(*device, DType::kBF16, Normal(1, 64)), out(*device, DType::kBF16, 64);
  DeviceArray<int32_t> table(*device, blocks), context_lens(*device, context),
      starts(*device, std::vector<int32_t>{0, 1});
  PagedAttentionOp op(*device);
  const auto plan =
      op.Plan({.context_lens = context, .query_lens = query_len, .heads = {1, 1, 64, 64}});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  PagedAttentionArgs args;
  args.out = out.View({1, 1, 64});
  args.query = query.View({1, 1, 64});
  args.kv_cache =
      TensorView(kv.data(), DType::kBF16, {second + 1, 2, 1, 16, 64}).WithRowStride(block_stride);
  args.block_table = TensorView(table.data(), DType::kI32, {1, 2});
  args.context_lens = TensorView(context_lens.data(), DType::kI32, {1});
  args.query_starts = TensorView(starts.data(), DType::kI32, {2});
  args.scale = 1.0f;
  args.plan = *plan;
  const absl::Status status = op.Run(args);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_THAT(out.ToHost(), ::testing::Each(2.0f));
}

// A 32-bit offset would miss the second block.
TEST(CudaPagedAttentionLimitsTest, ReadsBlocksBeyondTwoToThe31Elements) {
  constexpr int64_t kBlockElements = 2 * 16 * 64;
  ReadTwoBlocks(kBlockElements, static_cast<int32_t>((int64_t{1} << 32) / kBlockElements));
}

TEST(CudaPagedAttentionLimitsTest, ReadsBlocksThatAreAlmost4GiBApart) {
  ReadTwoBlocks((int64_t{1} << 31) - 8, 2);
}

// A device of which a multiprocessor runs `blocks` blocks at once, whatever the kernel.
class FixedOccupancyDevice : public ForwardingDevice {
 public:
  FixedOccupancyDevice(Device& device, int blocks) : ForwardingDevice(device), blocks_(blocks) {}
  absl::StatusOr<int> BlocksPerSm(const void*, const kernels::cuda::LaunchConfig&) override {
    return blocks_;
  }

 private:
  const int blocks_;
};

TEST(CudaPagedAttentionLimitsTest, APlanHasTheBlocksThatTheDeviceRunsAtOnceUpToTwoForEachSm) {
  const auto device = MakeDevice();
  const std::vector<int32_t> context = {100'000}, query_len = {1};
  for (const auto& [blocks, want] : {std::pair{0, 1}, {1, 1}, {2, 2}, {3, 2}}) {
    FixedOccupancyDevice occupied(*device, blocks);
    PagedAttentionOp op(occupied);
    const auto plan =
        op.Plan({.context_lens = context, .query_lens = query_len, .heads = {1, 1, 64, 64}});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    const auto& part = static_cast<const kernels::cuda::CudaAttentionPlan&>(**plan).parts().at(0);
    EXPECT_EQ(part.block_starts.size(), static_cast<size_t>(device->info().num_sms * want + 1));
  }
}

class PagedAttentionErrorTest : public ::testing::Test {
 protected:
  // No kernel is launched, so the tensors need no memory of their own.
  PagedAttentionErrorTest() {
    const std::vector<int32_t> context = {40}, query = {1};
    const auto plan =
        op_.Plan({.context_lens = context, .query_lens = query, .heads = {4, 2, 64, 64}});
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    args_.out = View(DType::kBF16, {1, 4, 64});
    args_.query = View(DType::kBF16, {1, 4, 64});
    args_.kv_cache = View(DType::kBF16, {8, 2, 2, 16, 64});
    args_.block_table = View(DType::kI32, {1, 3});
    args_.context_lens = View(DType::kI32, {1});
    args_.query_starts = View(DType::kI32, {2});
    args_.scale = 0.125f;
    args_.plan = *plan;
  }

  TensorView View(DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView(memory_, dtype, shape);
  }
  void ExpectError(const PagedAttentionArgs& args, const std::string& message) {
    const absl::Status status = op_.Run(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_TRUE(device_->Synchronize().ok());
  }

  alignas(16) std::byte memory_[64] = {};
  const std::unique_ptr<Device> device_ = MakeDevice();
  PagedAttentionOp op_{*device_};
  PagedAttentionArgs args_;
};

TEST_F(PagedAttentionErrorTest, SaysWhatWantedGotBeforeAnythingIsLaunched) {
  PagedAttentionArgs bad = args_;
  bad.query = bad.out = View(DType::kF32, {1, 4, 64});
  ExpectError(bad,
              "query: want a dtype, head_dim, pattern and bias with a tensor core kernel, got f32 "
              "[1, 4, 64], values of 64, all keys");
  bad = args_;
  bad.alibi_slopes = View(DType::kF32, {4});
  bad.alibi_is_rounded = true;
  ExpectError(bad, "got bf16 [1, 4, 64], values of 64, all keys, a rounded bias");
  bad = args_;
  bad.kv_cache = View(DType::kF16, {8, 2, 2, 16, 64});
  ExpectError(bad,
              "kv_cache: want the query's dtype, or fp8_e4m3 with a usual head_dim, and block_size "
              "16|32|64|128, got f16");
  bad = args_;
  bad.kv_cache = View(DType::kBF16, {8, 2, 2, 24, 64});
  ExpectError(bad, "block_size 16|32|64|128, got bf16 [8, 2, 24, 64/64]");
  bad = args_;
  bad.kv_cache = View(DType::kBF16, {8, 2, 3, 16, 64});
  ExpectError(bad, "num_heads a multiple of num_kv_heads = 3, got 4");
  bad = args_;
  bad.kv_cache = View(DType::kBF16, {8, 2, 1, 16, 64});
  ExpectError(bad, "got 1 sequences of 1 tokens, heads 4/2 of 64/64, all keys");
  bad = args_;
  bad.kv_cache = View(DType::kF8E4M3, {8, 2, 2, 16, 64});
  ExpectError(bad, "plan: want the last of Plan for its heads, pattern and type of cache");
  bad.query = TensorView(memory_ + 8, DType::kBF16, {1, 4, 64});
  ExpectError(bad, "query: want memory at a multiple of 16 bytes, got 8 past one");
  bad = args_;
  bad.pattern = AttentionPattern::Window(5);
  ExpectError(bad, "a window of 5");
  bad = args_;
  bad.kv_cache = View(DType::kBF16, {8, 2, 2, 16, 64}).WithRowStride(4100);
  ExpectError(bad,
              "kv_cache: want blocks a multiple of 16 bytes, and less than 4 GiB, apart, got "
              "8200 bytes");
  bad.kv_cache = View(DType::kBF16, {8, 2, 2, 16, 64}).WithRowStride(int64_t{1} << 31);
  ExpectError(bad, "got 4294967296 bytes");
  bad = args_;
  bad.kv_cache = TensorView(memory_ + 8, DType::kBF16, {8, 2, 2, 16, 64});
  ExpectError(bad, "kv_cache: want memory at a multiple of 16 bytes, got 8 past one");
  bad = args_;
  bad.query = TensorView(memory_ + 2, DType::kBF16, {1, 4, 64});
  ExpectError(bad, "query: want memory at a multiple of 16 bytes, got 2 past one");
  bad = args_;
  bad.out = TensorView(memory_ + 4, DType::kBF16, {1, 4, 64});
  ExpectError(bad, "out: want memory at a multiple of 8 bytes, got 4 past one");
  bad = args_;
  bad.alibi_slopes = View(DType::kF32, {3});
  ExpectError(bad, "alibi_slopes: want f32 [4], got f32 [3]");
  bad = args_;
  bad.scale = std::nanf("");
  ExpectError(bad, "scale: want finite, got nan");
  bad = args_;
  bad.block_table = View(DType::kI32, {1, 2});
  ExpectError(bad, "block_table: want blocks for 40 tokens of sequence 0, got 32");
  bad = args_;
  const kernels::cuda::CudaAttentionPlan other;
  bad.plan = &other;
  ExpectError(bad, "plan: want the last of Plan");
  EXPECT_FALSE(PagedAttentionOp::Supports(DType::kBF16, {.heads = {1, 1, 72, 72}}));
  EXPECT_FALSE(PagedAttentionOp::Supports(DType::kBF16, {.heads = {1, 1, 64, 128}}));
  constexpr AttentionPattern kBlocks = AttentionPattern::Blocks(64, 16, 8, 1);
  EXPECT_TRUE(
      PagedAttentionOp::Supports(DType::kBF16, {.heads = {1, 1, 128, 128}, .pattern = kBlocks}));
  EXPECT_FALSE(
      PagedAttentionOp::Supports(DType::kBF16, {.heads = {1, 1, 64, 64}, .pattern = kBlocks}));
  for (const int32_t dim : {64, 80, 128, 256}) {
    const auto reads_fp8 = [dim](const AttentionPattern& pattern) {
      return PagedAttentionOp::SupportsCache(DType::kBF16, DType::kF8E4M3,
                                             {.heads = {1, 1, dim, dim}, .pattern = pattern}, 16);
    };
    EXPECT_EQ(reads_fp8({}), dim != 80) << dim;
    EXPECT_FALSE(reads_fp8(kBlocks)) << dim;
  }
  const std::vector<int32_t> one = {1};
  for (const int32_t key_dim : {64, 72}) {
    const auto plan =
        op_.Plan({.context_lens = one, .query_lens = one, .heads = {1, 1, key_dim, 72}});
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace quire::testing
