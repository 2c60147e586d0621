// Tests the parts of CudaBackend other than its ops: prepared weights, memory, plans, and refusals.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/math.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/product/packed_weight.h"
#include "kernels/cuda/product/weight_upload.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/sample_testing.h"

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
      const int64_t values_bytes = 5 * 256 * SizeOf(dtype);
      // A packed part has whole groups of 16 rows, and the next part begins at a multiple of 256.
      const int64_t packed_bytes = SizeOf(dtype) == 2 ? PackedGroupBytes(type, 256) : 0;
      EXPECT_EQ(weight->bytes(), packed_bytes == 0 ? values_bytes
                                                   : base::RoundUp(packed_bytes, int64_t{256}) +
                                                         2 * 256 * SizeOf(dtype));
      const int64_t first_values = 3 * 256 * SizeOf(dtype);
      EXPECT_EQ(backend->PreparedBytes(first.view), packed_bytes > 0 ? packed_bytes : first_values);
      std::vector<float> values = first.values;
      values.insert(values.end(), second.values.begin(), second.values.end());

      const std::vector<int32_t> rows = {0, 1, 2, 3, 4};
      const DeviceBuffer ids = *backend->Allocate(20), out = *backend->Allocate(values_bytes);
      ASSERT_TRUE(backend->CopyToDevice(ids.data(), rows.data(), 20).ok());
      ASSERT_TRUE(backend
                      ->Embed({.out = TensorView(out.data(), dtype, {5, 256}),
                               .token_ids = TensorView(ids.data(), DType::kI32, {5}),
                               .weight = weight.get()})
                      .ok());
      std::vector<uint8_t> got(static_cast<size_t>(values_bytes));
      ASSERT_TRUE(backend->CopyToHost(got.data(), out.data(), values_bytes).ok());
      ASSERT_TRUE(backend->Synchronize().ok());
      EXPECT_EQ(Decode(dtype, got), Decode(dtype, Encode(dtype, values)));
    }
  }
}

// The experts of a mixture stay packed if all have one type and a multiple of 32 rows.
TEST(CudaBackendTest, PreparesExpertsOfEveryWeightType) {
  for (const DType dtype : kFloats) {
    const auto backend = MakeBackend({.activation_dtype = dtype});
    for (const WeightType type : testing::kAllWeightTypes) {
      SCOPED_TRACE(Traits(type).name);
      const int64_t packed_bytes = SizeOf(dtype) == 2 ? PackedGroupBytes(type, 256) : 0;
      const testing::TestWeight two = RandomWeight(type, 32, 256, 1);
      const testing::TestWeight four = RandomWeight(type, 64, 256, 2);
      const testing::TestWeight one = RandomWeight(type, 16, 256, 3);
      const testing::TestWeight other = RandomWeight(WeightType::kQ5_0, 32, 256, 4);
      const auto bytes_of = [&](std::initializer_list<WeightView> parts) {
        const auto weight = *backend->PrepareMoeWeight(std::vector(parts));
        EXPECT_TRUE(backend->Synchronize().ok());
        return weight->bytes();
      };
      const int64_t row_bytes = 256 * SizeOf(dtype);
      EXPECT_EQ(bytes_of({two.view, four.view}),
                packed_bytes > 0 ? 6 * packed_bytes : 96 * row_bytes);
      EXPECT_EQ(bytes_of({two.view, one.view}), 48 * row_bytes);
      if (type != WeightType::kQ5_0) {
        EXPECT_EQ(bytes_of({two.view, other.view}), 64 * row_bytes);
      }
      EXPECT_EQ(backend->PreparedMoeBytes(four.view),
                packed_bytes > 0 ? 4 * packed_bytes : 64 * row_bytes);
      EXPECT_EQ(backend->PreparedMoeBytes(one.view), 16 * row_bytes);
    }
  }
}

// Three and a half pieces of pinned memory, filled by several threads.
TEST(CudaBackendTest, AWeightOfManyPiecesArrivesWhole) {
  constexpr int64_t kCols = 4096, kRows = WeightUpload::kPieceBytes * 7 / 2 / (kCols * 2);
  std::vector<uint16_t> values(static_cast<size_t>(kRows * kCols));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<uint16_t>(i * 2654435761u >> 18);
  const WeightView view = {.type = WeightType::kBF16,
                           .rows = kRows,
                           .cols = kCols,
                           .bytes = std::as_bytes(std::span(values))};
  const auto device = testing::MakeDevice();
  const DeviceBuffer memory = *device->Allocate(kRows * kCols * 2);
  WeightUpload upload(*device);
  ASSERT_TRUE(upload.Write(view, DType::kBF16, memory.data()).ok());
  std::vector<uint16_t> got(values.size());
  ASSERT_TRUE(device->CopyToHost(got.data(), memory.data(), memory.bytes()).ok());
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_TRUE(got == values);
}

TEST(CudaBackendTest, AllocatesZeroesAndRefusesPartsOfOtherWidths) {
  const auto backend = MakeBackend();
  for (const int64_t bytes : {int64_t{0}, int64_t{5}, int64_t{70000}}) {
    const DeviceBuffer buffer = *backend->Allocate(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    std::vector<char> got(static_cast<size_t>(bytes), 1);
    ASSERT_TRUE(backend->CopyToHost(got.data(), buffer.data(), bytes).ok());
    ASSERT_TRUE(backend->Synchronize().ok());
    EXPECT_EQ(got, std::vector<char>(static_cast<size_t>(bytes)));
  }
  const testing::TestWeight a = RandomWeight(WeightType::kF32, 2, 64, 1);
  const testing::TestWeight b = RandomWeight(WeightType::kF32, 2, 32, 1);
  const std::vector<WeightView> parts = {a.view, b.view};
  EXPECT_THAT(std::string(backend->PrepareWeight(parts).status().message()),
              HasSubstr("parts: want 64 cols, got 32"));
}

TEST(CudaBackendTest, HoldsAStepToItsPlan) {
  const auto backend = MakeBackend();
  const std::vector<int32_t> contexts = {20}, queries = {1};
  AttentionPlanArgs step{.context_lens = contexts, .query_lens = queries, .heads = {2, 1, 8, 8}};
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
  args.pattern = AttentionPattern::Window(4);
  EXPECT_THAT(std::string(backend->PagedAttention(args).message()),
              HasSubstr("plan: want one for 1 sequences"));
  step.heads.num_kv_heads = 3;
  EXPECT_THAT(std::string(backend->Plan(step).status().message()),
              HasSubstr("num_heads a positive multiple of num_kv_heads, got 2 and 3"));
}

// Both calls are enqueued before the first runs.
TEST(CudaBackendTest, SamplesTheTokensOfTheCpu) {
  const testing::TwoCalls calls = testing::SampleTwice(*MakeBackend(), 301);
  const testing::TwoCalls want = testing::SampleTwice(*testing::MakeBackend("portable", 1), 301);
  EXPECT_EQ(ToText(calls), ToText(want));
  EXPECT_EQ(calls.drawn, want.drawn);
}

TEST(CudaBackendTest, RefusesDtypesByName) {
  EXPECT_THAT(
      std::string(CreateCudaBackend(testing::MakeDevice(), {.activation_dtype = DType::kI32})
                      .status()
                      .message()),
      HasSubstr("activation_dtype: want f32|f16|bf16, got int32"));
}

}  // namespace
}  // namespace quire::kernels::cuda
