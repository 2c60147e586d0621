// Tests caches and tables of more than 2^31 elements. A kernel that truncates an index to 32 bits
// would read or write near the beginning of the memory. Most of the memory is never touched, so the
// emulator needs no real memory for it.

#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/matrix_instruction.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/grouped_gemm.cuh"
#include "kernels/cuda/product/packed_grouped_gemm.cuh"
#include "kernels/cuda/product/packed_weight.h"
#include "kernels/cuda/product/wgmma_grouped_gemm.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::DeviceArray;
using ::testing::Each;

constexpr int64_t kHeadDim = 64, kBlockSize = 16;
constexpr int64_t kHalfBlock = kBlockSize * kHeadDim, kRow = 2 * kHalfBlock;
constexpr int64_t kFarRow = (int64_t{1} << 32) / kRow;  // this row begins at element 2^32
constexpr int32_t kFar = static_cast<int32_t>(kFarRow);
// The elements of one expert in the tests of the grouped GEMM.
constexpr int64_t kExpertElements = int64_t{1} << 22;
constexpr uint16_t kNothing = 0xffff, kOne = 0x3f80, kThree = 0x4040;  // NaN, 1 and 3 in bf16

// Holds a tensor [kFarRow + 1, kRow] of bf16. A row is one block of a cache with one KV head, or
// one row of a table.
class LargeTensorTest : public ::testing::Test {
 protected:
  void SetRow(int64_t row, uint16_t value) {
    const std::vector<uint16_t> values(kRow, value);
    ASSERT_TRUE(device_->CopyToDevice(memory() + row * kRow, values.data(), kRow * 2).ok());
    ASSERT_TRUE(device_->Synchronize().ok());
  }
  std::vector<uint16_t> Row(int64_t row) {
    std::vector<uint16_t> values(kRow);
    EXPECT_TRUE(device_->CopyToHost(values.data(), memory() + row * kRow, kRow * 2).ok());
    EXPECT_TRUE(device_->Synchronize().ok());
    return values;
  }
  uint16_t* memory() { return static_cast<uint16_t*>(buffer_.data()); }
  TensorView Rows() { return TensorView(memory(), DType::kBF16, {kFarRow + 1, kRow}); }
  TensorView Cache() {
    return TensorView(memory(), DType::kBF16, {kFarRow + 1, 2, 1, kBlockSize, kHeadDim});
  }

  const std::unique_ptr<Device> device_ = testing::MakeDevice();
  DeviceBuffer buffer_ = *device_->Allocate((kFarRow * kRow + kExpertElements) * 2);
};

TEST_F(LargeTensorTest, CopyBlocksReachesTheEnd) {
  SetRow(0, kOne);
  SetRow(1, kOne);
  SetRow(kFarRow - 1, kThree);
  SetRow(kFarRow, kNothing);
  const std::vector<BlockCopy> copies = {{0, kFar}, {kFar - 1, 1}};
  ASSERT_TRUE(CopyBlocks(*device_, {.blocks = Rows(), .copies = copies}).ok());
  EXPECT_THAT(Row(kFarRow), Each(kOne));
  EXPECT_THAT(Row(1), Each(kThree));
  EXPECT_THAT(Row(0), Each(kOne));
}

TEST_F(LargeTensorTest, GatherRowsAndEmbedReachTheEnd) {
  SetRow(0, kOne);
  SetRow(kFarRow, kThree);
  DeviceArray<int32_t> rows(*device_, std::vector<int32_t>{kFar});
  DeviceArray<uint16_t> gathered(*device_, kRow), embedded(*device_, kRow);
  ASSERT_TRUE(GatherRows(*device_, {.out = TensorView(gathered.data(), DType::kBF16, {1, kRow}),
                                    .input = Rows(),
                                    .rows = TensorView(rows.data(), DType::kI32, {1})})
                  .ok());
  EXPECT_THAT(gathered.ToHost(), Each(kThree));
  const CudaWeight table(DeviceBuffer(memory(), buffer_.bytes(), [](void*) {}), DType::kBF16,
                         kFarRow + 1, kRow);
  ASSERT_TRUE(Embed(*device_, {.out = TensorView(embedded.data(), DType::kBF16, {1, kRow}),
                               .token_ids = TensorView(rows.data(), DType::kI32, {1}),
                               .weight = &table})
                  .ok());
  EXPECT_THAT(embedded.ToHost(), Each(kThree));
}

// All weights of the last group are 3: the scale is 3 and the codes are 1, stored as 129.
TEST_F(LargeTensorTest, EmbedReachesTheEndOfAPackedTable) {
  using Format = PackedFormatOf<WeightType::kQ8_0>;
  std::vector<uint8_t> group;
  for (int64_t tile = 0; tile < Format::NumTiles(kRow); ++tile) {
    group.insert(group.end(), Format::kCodeBytes, 129);
    for (int i = 0; i < Format::kScaleBytes / 2; ++i) group.insert(group.end(), {0x00, 0x42});
  }
  const auto group_bytes = static_cast<int64_t>(group.size());
  const int64_t last = buffer_.bytes() / group_bytes - 1, rows = (last + 1) * kGroupRows;
  ASSERT_TRUE(device_
                  ->CopyToDevice(reinterpret_cast<uint8_t*>(memory()) + last * group_bytes,
                                 group.data(), group_bytes)
                  .ok());
  const CudaWeight table(DeviceBuffer(memory(), buffer_.bytes(), [](void*) {}), DType::kBF16, kRow,
                         {{.num_rows = rows, .packed = WeightType::kQ8_0}});
  DeviceArray<int32_t> ids(*device_, std::vector<int32_t>{static_cast<int32_t>(rows - 1)});
  DeviceArray<uint16_t> embedded(*device_, kRow);
  ASSERT_TRUE(Embed(*device_, {.out = TensorView(embedded.data(), DType::kBF16, {1, kRow}),
                               .token_ids = TensorView(ids.data(), DType::kI32, {1}),
                               .weight = &table})
                  .ok());
  EXPECT_THAT(embedded.ToHost(), Each(kThree));
}

TEST_F(LargeTensorTest, QkvPostWritesTheLastBlock) {
  SetRow(0, kNothing);
  SetRow(kFarRow, kNothing);
  DeviceArray<uint16_t> qkv(*device_, std::vector<uint16_t>(3 * kHeadDim, kThree));
  DeviceArray<uint16_t> query(*device_, kHeadDim);
  DeviceArray<int64_t> slots(*device_, std::vector<int64_t>{kFarRow * kBlockSize + 2});
  ASSERT_TRUE(QkvPost(*device_, {.query = TensorView(query.data(), DType::kBF16, {1, 1, kHeadDim}),
                                 .kv_cache = Cache(),
                                 .qkv = TensorView(qkv.data(), DType::kBF16, {1, 3 * kHeadDim}),
                                 .slot_mapping = TensorView(slots.data(), DType::kI64, {1})})
                  .ok());
  EXPECT_THAT(query.ToHost(), Each(kThree));
  EXPECT_THAT(Row(0), Each(kNothing));
  const std::vector<uint16_t> block = Row(kFarRow);
  for (int64_t i = 0; i < kRow; ++i) {
    ASSERT_EQ(block[static_cast<size_t>(i)], i / kHeadDim % kBlockSize == 2 ? kThree : kNothing)
        << i;
  }
}

// The query is 0, so every key has the same weight. The output is the mean of the values of the two
// blocks.
TEST_F(LargeTensorTest, AttentionReferenceReadsTheLastBlock) {
  SetRow(0, kNothing);
  SetRow(1, kOne);
  SetRow(kFarRow, kThree);
  DeviceArray<uint16_t> query(*device_, std::vector<uint16_t>(kHeadDim, 0)),
      out(*device_, kHeadDim);
  DeviceArray<int32_t> table(*device_, std::vector<int32_t>{1, kFar}),
      context_lens(*device_, std::vector<int32_t>{2 * kBlockSize}),
      starts(*device_, std::vector<int32_t>{0, 1});
  const AttentionPlan plan;
  ASSERT_TRUE(AttentionReference(*device_,
                                 {.out = TensorView(out.data(), DType::kBF16, {1, 1, kHeadDim}),
                                  .query = TensorView(query.data(), DType::kBF16, {1, 1, kHeadDim}),
                                  .kv_cache = Cache(),
                                  .block_table = TensorView(table.data(), DType::kI32, {1, 2}),
                                  .context_lens = TensorView(context_lens.data(), DType::kI32, {1}),
                                  .query_starts = TensorView(starts.data(), DType::kI32, {2}),
                                  .scale = 1.0f,
                                  .plan = &plan})
                  .ok());
  EXPECT_THAT(out.ToHost(), Each(uint16_t{0x4000}));  // 2 in bf16
}

// --- The weights of many experts

class LargeExpertsTest : public LargeTensorTest {
 protected:
  static constexpr int64_t kDepth = 64;  // unless another is named
  static constexpr int32_t kExperts = static_cast<int32_t>(kFarRow * kRow / kExpertElements) + 1;

  // Multiplies a row of ones by the weight of the last expert, which begins at element 2^32, and
  // returns the first columns of the result. All experts but the last have no row. `gate` fills the
  // last expert's first rows, and `up` fills the first rows of its second half.
  template <typename Out, typename Enqueue>
  std::vector<Out> Multiply(const Enqueue& enqueue, bool gated, int64_t num_cols,
                            int64_t depth = kDepth) {
    for (int64_t row = 0; row < kReadRows; ++row) {
      SetRow(row, kNothing);
      SetRow(kFarRow + row, kThree);
      SetRow(kFarRow + kExpertElements / 2 / kRow + row, kOne);
    }
    std::vector<int32_t> starts(kExperts, 0);
    starts.push_back(1);
    DeviceArray<int32_t> device_starts(*device_, starts);
    DeviceArray<uint16_t> input(*device_, std::vector<uint16_t>(static_cast<size_t>(depth), kOne));
    DeviceArray<Out> out(*device_, num_cols);
    GroupedGemmParams params = {};
    params.out = out.data();
    params.input = input.data();
    params.weight = memory();
    params.starts = device_starts.data();
    params.num_groups = kExperts;
    params.rows_per_input = 1;
    params.cols = kExpertElements / depth / (gated ? 2 : 1);
    params.out_cols = params.cols;
    params.depth = depth;
    params.activation = Activation::kSiluMul;
    EXPECT_TRUE(enqueue(params).ok());
    return out.ToHost();
  }
  template <typename Out>
  std::vector<Out> Multiply(void (*kernel)(GroupedGemmParams), int64_t shared_bytes, bool gated,
                            int64_t num_cols) {
    return Multiply<Out>(
        [&](const GroupedGemmParams& params) {
          return Launch(*device_, {.block = {128}, .shared_bytes = shared_bytes}, kernel, params);
        },
        gated, num_cols);
  }

 private:
  // Enough for the first columns of GroupedGemmShape<1, 32>, and for one of 2^14 elements.
  static constexpr int64_t kReadRows = (int64_t{1} << 14) / kRow;
};

TEST_F(LargeExpertsTest, GroupedGemmReadsTheLastExpert) {
  using Tile = GroupedGemmShape<1, 32>;
  const std::vector<float> products = Multiply<float>(&GroupedGemmKernel<Bf16, 1, 32, false>,
                                                      Tile::kSharedBytes, false, Tile::Cols(false));
  EXPECT_THAT(products, Each(3.0f * kDepth));
  EXPECT_EQ(Multiply<float>(&GroupedGemmPlainKernel<Bf16, false>, 0, false, kPlainGemmThreads),
            products);
  // SiLU(192) is 192, so the result is 192 * 64.
  constexpr uint16_t kGated = 0x4640;
  EXPECT_THAT(Multiply<uint16_t>(&GroupedGemmKernel<Bf16, 1, 32, true>, Tile::kSharedBytes, true,
                                 Tile::Cols(true)),
              Each(kGated));
  EXPECT_THAT(Multiply<uint16_t>(&GroupedGemmPlainKernel<Bf16, true>, 0, true, kPlainGemmThreads),
              Each(kGated));
}

// The whole expert is one product, of whose columns the first has weights.
TEST_F(LargeExpertsTest, WgmmaGroupedGemmReadsTheLastExpert) {
  if (!HasInstruction(device_->info(), MatrixInstruction::kWgmma)) {
    GTEST_SKIP() << "needs compute capability 9.0";
  }
  constexpr int64_t kCols = 256, kDeep = kExpertElements / kCols;
  const auto products = Multiply<float>(
      [&](const GroupedGemmParams& params) {
        return WgmmaGroupedGemm<Bf16, false>(*device_, params, 1);
      },
      false, kCols, kDeep);
  EXPECT_EQ(products[0], 3.0f * kDeep);
  const auto gated = Multiply<uint16_t>(
      [&](const GroupedGemmParams& params) {
        return WgmmaGroupedGemm<Bf16, true>(*device_, params, 1);
      },
      true, kCols / 2, kDeep);
  // SiLU(3 * 2^14) is 3 * 2^14, so the result is 3 * 2^28.
  EXPECT_EQ(gated[0], 0x4e40);
}

TEST_F(LargeExpertsTest, PackedGroupedGemmReadsTheLastExpert) {
  // Two groups of 16 rows and 64 columns, of ones: the code of 1 is 129, and the scale is 1.
  constexpr int64_t kGroupBytes = 1088, kCols = 65536;
  ASSERT_EQ(PackedGroupBytes(WeightType::kQ8_0, kDepth), kGroupBytes);
  std::vector<uint8_t> ones(kGroupBytes, 129);
  for (size_t i = 1024; i < ones.size(); i += 2) {
    ones[i] = 0;
    ones[i + 1] = 0x3c;
  }
  using Shape = PackedGemmShape<WeightType::kQ8_0, 1>;
  const auto multiply = [&](void (*kernel)(GroupedGemmParams), bool gated, auto element) {
    const int64_t matrix_bytes = kCols / kGroupRows * kGroupBytes;
    const int64_t expert_bytes = matrix_bytes * (gated ? 2 : 1);
    const int64_t last = (int64_t{1} << 32) / expert_bytes + 1;
    auto* const at = reinterpret_cast<uint8_t*>(memory()) + last * expert_bytes;
    for (uint8_t* const to : {at, at + (gated ? matrix_bytes : kGroupBytes)}) {
      EXPECT_TRUE(device_->CopyToDevice(to, ones.data(), kGroupBytes).ok());
    }
    std::vector<int32_t> starts(static_cast<size_t>(last + 1), 0);
    starts.push_back(1);
    DeviceArray<int32_t> device_starts(*device_, starts);
    DeviceArray<uint16_t> input(*device_, std::vector<uint16_t>(kDepth, kOne));
    DeviceArray<decltype(element)> out(*device_, gated ? 16 : 32);
    GroupedGemmParams params = {};
    params.out = out.data();
    params.input = input.data();
    params.weight = memory();
    params.starts = device_starts.data();
    params.num_groups = static_cast<int32_t>(last + 1);
    params.rows_per_input = 1;
    params.cols = params.out_cols = kCols;
    params.depth = kDepth;
    params.activation = Activation::kSiluMul;
    EXPECT_TRUE(Launch(*device_, {.block = {Shape::kThreads}, .shared_bytes = Shape::kSharedBytes},
                       kernel, params)
                    .ok());
    return out.ToHost();
  };
  EXPECT_THAT(multiply(&PackedGroupedGemmKernel<Bf16, WeightType::kQ8_0, 1, false>, false, float{}),
              Each(64.0f));
  // SiLU(64) is 64, so the result is 64 * 64.
  EXPECT_THAT(
      multiply(&PackedGroupedGemmKernel<Bf16, WeightType::kQ8_0, 1, true>, true, uint16_t{}),
      Each(uint16_t{0x4580}));
}

}  // namespace
}  // namespace quire::kernels::cuda
