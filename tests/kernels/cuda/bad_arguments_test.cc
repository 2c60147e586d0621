// Tests that every op of the CUDA backend refuses bad arguments. The error must be InvalidArgument
// and name the argument. A counting device checks that nothing is enqueued.

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/moe.h"
#include "kernels/cuda/sample/device_sampler.h"
#include "tests/kernels/cuda/counting_device.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::kernels::cuda {
namespace {

using ::testing::HasSubstr;

constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
constexpr DType kI32 = DType::kI32, kI64 = DType::kI64;

// A change that makes good arguments bad, and a part of the error message that it must cause.
template <typename Args>
struct Bad {
  std::string says;
  std::function<void(Args&)> spoil;
};

// Returns a function that sets one field.
template <typename Args, typename T>
std::function<void(Args&)> Set(T Args::*field, std::type_identity_t<T> value) {
  return [field, value](Args& args) { args.*field = value; };
}

class BadArgumentsTest : public ::testing::Test {
 protected:
  BadArgumentsTest() {
    EXPECT_TRUE(device_->Fill(memory_.data(), 0, memory_.bytes()).ok());
    EXPECT_TRUE(device_->Synchronize().ok());
    num_enqueued_ = 0;
  }

  // Returns a tensor in device memory that holds zeros, which are valid indices and numbers. All
  // tensors share this memory.
  TensorView View(DType dtype, std::initializer_list<int64_t> shape, int64_t offset_bytes = 0) {
    return TensorView(static_cast<char*>(memory_.data()) + offset_bytes, dtype, shape);
  }
  CudaWeight Weight(DType dtype, int64_t rows, int64_t cols) {
    return CudaWeight(*device_->Allocate(rows * cols * SizeOf(dtype)), dtype, rows, cols);
  }

  // Checks that `run` enqueues something for `good`, and that it refuses each of `bad` before it
  // enqueues anything.
  template <typename Args, typename Run>
  void Check(Args good, Run run, const std::vector<Bad<Args>>& bad) {
    num_enqueued_ = 0;
    ASSERT_TRUE(run(good).ok()) << run(good).ToString();
    EXPECT_GT(num_enqueued_, 0);
    EXPECT_TRUE(device_->Synchronize().ok());
    num_enqueued_ = 0;
    for (const Bad<Args>& one : bad) {
      Args args = good;
      one.spoil(args);
      const absl::Status status = run(args);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.says;
      EXPECT_THAT(std::string(status.message()), HasSubstr(one.says));
      EXPECT_EQ(num_enqueued_, 0) << one.says;
      num_enqueued_ = 0;
    }
  }

  int num_enqueued_ = 0;
  std::unique_ptr<Device> device_ =
      std::make_unique<testing::CountingDevice>(testing::MakeDevice(), num_enqueued_);
  DeviceBuffer memory_ = *device_->Allocate(1 << 16);
};

TEST_F(BadArgumentsTest, OfEmbed) {
  const CudaWeight weight = Weight(kF32, 4, 16);
  using Args = EmbedArgs;
  Check<Args>(
      {.out = View(kF32, {2, 16}), .token_ids = View(kI32, {2}), .weight = &weight},
      [&](const Args& args) { return Embed(*device_, args); },
      {{"weight: want a prepared weight", Set(&Args::weight, nullptr)},
       {"token_ids: want int32 [*]", Set(&Args::token_ids, View(kI64, {2}))},
       {"token_ids: want int32 [*]", Set(&Args::token_ids, {})},
       {"token_ids: want int32 [*]", Set(&Args::token_ids, View(kI32, {2, 1}))},
       {"out: want f32|f16|bf16 [2, 16]", Set(&Args::out, View(kF32, {2, 8}))},
       {"out: want f32|f16|bf16 [2, 16]", Set(&Args::out, View(kF32, {3, 16}))},
       {"out: want f32|f16|bf16 [2, 16]", Set(&Args::out, View(kI32, {2, 16}))},
       {"out: want rows together", [](Args& a) { a.out = a.out.WithRowStride(20); }},
       {"out: want memory at a multiple of 16 bytes", Set(&Args::out, View(kF32, {2, 16}, 4))}});
}

TEST_F(BadArgumentsTest, OfTakeTokens) {
  using Args = TakeTokensArgs;
  Check<Args>({.token_ids = View(kI32, {4}), .drawn = View(kI32, {2}), .sources = View(kI32, {4})},
              [&](const Args& args) { return TakeTokens(*device_, args); },
              {{"token_ids: want int32 [*]", Set(&Args::token_ids, View(kI64, {4}))},
               {"token_ids: want int32 [*]", Set(&Args::token_ids, View(kI32, {2, 2}))},
               {"drawn: want int32 [*]", Set(&Args::drawn, View(kF32, {2}))},
               {"sources: want int32 [4]", Set(&Args::sources, View(kI32, {5}))},
               {"sources: want int32 [4]", Set(&Args::sources, {})}});
}

TEST_F(BadArgumentsTest, OfUpdateTable) {
  using Args = UpdateTableArgs;
  Check<Args>({.table = View(kI32, {4}), .changes = View(kI32, {2, 2})},
              [&](const Args& args) { return UpdateTable(*device_, args); },
              {{"table: want int32 [*]", Set(&Args::table, View(kI64, {4}))},
               {"table: want int32 [*]", Set(&Args::table, View(kI32, {2, 2}))},
               {"changes: want int32 [*, 2]", Set(&Args::changes, View(kI32, {4}))},
               {"changes: want int32 [*, 2]", Set(&Args::changes, View(kI32, {2, 3}))}});
}

TEST_F(BadArgumentsTest, OfSample) {
  const auto sampler =
      *DeviceSampler::Create(*device_, {.vocab_size = 8, .max_rows = 2, .max_draws = 3});
  const SampleRow row = {.draw = 0};
  const std::vector<SampleRow> two(2, row);
  using Args = SampleArgs;
  Check<Args>({.logits = View(kF32, {2, 8}),
               .rows = {&row, 1},
               .drawn = View(kI32, {3}),
               .sampler = sampler.get()},
              [&](const Args& args) {
                EXPECT_TRUE(sampler->Prepare({&row, 1}).ok());
                const absl::Status status = DeviceSampler::Enqueue(args);
                std::vector<absl::StatusOr<SampledRow>> results;
                if (status.ok() && device_->Synchronize().ok()) sampler->Take(results);
                return status;
              },
              {{"logits: want f32 [*, *]", Set(&Args::logits, View(kF16, {2, 8}))},
               {"logits: want 1 to 8 ids", Set(&Args::logits, View(kF32, {2, 9}))},
               {"logits: want 1 to 8 ids", Set(&Args::logits, View(kF32, {2, 0}))},
               {"drawn: want int32 [*]", Set(&Args::drawn, View(kF32, {3}))},
               {"rows: want those of PreparedSampler::Prepare, got 2", Set(&Args::rows, two)},
               {"sampler: want one", Set(&Args::sampler, nullptr)}});
  const std::vector<SampleRow> seven(7, row);
  EXPECT_THAT(std::string(sampler->Prepare(seven).status().message()),
              HasSubstr("rows: want at most 6, got 7"));
  const std::vector<LogitBias> biases(kMostBiases + 1);
  const SampleRow biased = {.draw = 0, .biases = biases};
  EXPECT_THAT(std::string(sampler->Prepare({&biased, 1}).status().message()),
              HasSubstr("rows.biases: want at most 1024, got 1025"));
  const std::vector<SampleRow> four(4, SampleRow{.draw = 0, .biases = std::span(biases).first(1)});
  EXPECT_THAT(std::string(sampler->Prepare(four).status().message()),
              HasSubstr("rows: want draws for at most 3 sequences"));
}

TEST_F(BadArgumentsTest, OfGatherRows) {
  using Args = GatherRowsArgs;
  Check<Args>(
      {.out = View(kF32, {2, 16}), .input = View(kF32, {4, 16}), .rows = View(kI32, {2})},
      [&](const Args& args) { return GatherRows(*device_, args); },
      {{"input: want f32|f16|bf16 [*, *]", Set(&Args::input, View(kI32, {4, 16}))},
       {"input: want f32|f16|bf16 [*, *]", Set(&Args::input, View(kF32, {64}))},
       {"rows: want int32 [*]", Set(&Args::rows, View(kI64, {2}))},
       {"out: want f32|f16|bf16 [2, 16]", Set(&Args::out, View(kF32, {2, 8}))},
       {"out: want f32|f16|bf16 [3, 16]", Set(&Args::rows, View(kI32, {3}))},
       {"out: want f32, got bf16", Set(&Args::out, View(kBF16, {2, 16}))},
       {"out: want memory at a multiple of 16", Set(&Args::out, View(kF32, {2, 16}, 8))},
       {"input: want memory at a multiple of 16", Set(&Args::input, View(kF32, {4, 16}, 4))}});
}

TEST_F(BadArgumentsTest, OfCopyBlocks) {
  const std::vector<BlockCopy> good = {{0, 1}}, below = {{0, 1}, {-1, 2}}, beyond = {{0, 4}},
                               twice = {{0, 2}, {1, 2}}, chain = {{0, 1}, {1, 2}};
  using Args = CopyBlocksArgs;
  Check<Args>(
      {.blocks = View(kF32, {4, 32}), .copies = good},
      [&](const Args& args) { return CopyBlocks(*device_, args); },
      {{"blocks: want f32|f16|bf16|fp8_e4m3 [*, *]", Set(&Args::blocks, View(kI32, {4, 32}))},
       {"blocks: want f32|f16|bf16|fp8_e4m3 [*, *]", Set(&Args::blocks, View(kF32, {4, 2, 16}))},
       {"blocks: want an even number of bytes", Set(&Args::blocks, View(DType::kF8E4M3, {4, 33}))},
       {"blocks: want rows together", [](Args& a) { a.blocks = a.blocks.WithRowStride(40); }},
       {"copies: want blocks in [0, 4), got -1", Set(&Args::copies, below)},
       {"copies: want blocks in [0, 4), got 4", Set(&Args::copies, beyond)},
       {"copies: want each destination once, got 2 twice", Set(&Args::copies, twice)},
       {"copies: want sources that are no destinations, got 1", Set(&Args::copies, chain)},
       {"blocks: want memory at a multiple of 16", Set(&Args::blocks, View(kF32, {4, 32}, 4))}});
}

TEST_F(BadArgumentsTest, OfShiftKeys) {
  const std::vector<KeyShift> good = {{1, 4}}, beyond = {{1, 4}, {3, 1}}, below = {{-1, 1}},
                              far = {{1, 5}}, back = {{1, -1}};
  using Args = ShiftKeysArgs;
  Check<Args>(
      {.kv_cache = View(kF16, {3, 2, 2, 4, 8}),
       .rope_table = View(kF32, {5, 4, 2}),
       .shifts = good},
      [&](const Args& args) { return ShiftKeys(*device_, args); },
      {{"keys of kv_cache: want f32|f16|bf16|fp8_e4m3 [*, *, *, *]",
        Set(&Args::kv_cache, View(kI32, {3, 2, 2, 4, 8}))},
       {"kv_cache: want no key_norms where keys are shifted, got those of 2 KV heads",
        [&](Args& a) { a.kv_cache.key_norms = View(kF32, {2}); }},
       {"key_norms of kv_cache: want f32 [2]",
        [&](Args& a) { a.kv_cache.key_norms = View(kF32, {3}); }},
       {"rope_layout: want keys that a rotary embedding turned",
        Set(&Args::rope_layout, RopeLayout::kNone)},
       {"rope_table: want f32 [*, *, 2]", Set(&Args::rope_table, {})},
       {"rope_table: want rope_dim / 2 at most 4", Set(&Args::rope_table, View(kF32, {5, 5, 2}))},
       {"table_scale: want > 0, got 0", Set(&Args::table_scale, 0.0f)},
       {"table_scale: want > 0, got nan", Set(&Args::table_scale, std::nanf(""))},
       {"table_scale: want > 0, got inf", Set(&Args::table_scale, INFINITY)},
       {"shifts: want blocks in [0, 3), got 3", Set(&Args::shifts, beyond)},
       {"shifts: want blocks in [0, 3), got -1", Set(&Args::shifts, below)},
       {"shifts: want distances in [0, 5), got 5", Set(&Args::shifts, far)},
       {"shifts: want distances in [0, 5), got -1", Set(&Args::shifts, back)}});
}

TEST_F(BadArgumentsTest, OfArgmax) {
  using Args = ArgmaxArgs;
  Check<Args>({.out = View(kI32, {2}), .values = View(kF32, {2, 40})},
              [&](const Args& args) { return Argmax(*device_, args); },
              {{"values: want f32 [*, *]", Set(&Args::values, View(kBF16, {2, 40}))},
               {"values: want f32 [*, *]", Set(&Args::values, View(kF32, {80}))},
               {"values: want rows of 1 to", Set(&Args::values, View(kF32, {2, 0}))},
               {"out: want int32 [2]", Set(&Args::out, View(kI64, {2}))},
               {"out: want int32 [2]", Set(&Args::out, View(kI32, {3}))}});
}

TEST_F(BadArgumentsTest, OfNorm) {
  using Args = NormArgs;
  Check<Args>({.out = View(kF32, {2, 16}),
               .input = View(kF32, {2, 16}),
               .weight = View(kF32, {16}),
               .bias = View(kF32, {16}),
               .residual = View(kF32, {2, 16}, 4096),
               .kind = NormKind::kLayerNorm},
              [&](const Args& args) { return Norm(*device_, args); },
              {{"input: want f32|f16|bf16 [*, *]", Set(&Args::input, View(kI32, {2, 16}))},
               {"input: want hidden_size > 0", Set(&Args::input, View(kF32, {2, 0}))},
               {"out: want f32|f16|bf16 [2, 16]", Set(&Args::out, View(kF32, {3, 16}))},
               {"out: want f32, got f16", Set(&Args::out, View(kF16, {2, 16}))},
               {"weight: want f32 [16]", Set(&Args::weight, View(kF32, {8}))},
               {"weight: want f32 [16]", Set(&Args::weight, View(kBF16, {16}))},
               {"weight: want f32 [16]", Set(&Args::weight, {})},
               {"bias: want f32 [16]", Set(&Args::bias, View(kF32, {17}))},
               {"residual: want f32|f16|bf16 [2, 16]", Set(&Args::residual, View(kF32, {1, 16}))},
               {"residual: want f32, got bf16", Set(&Args::residual, View(kBF16, {2, 16}))},
               {"eps: want >= 0, got -1", Set(&Args::eps, -1.0f)},
               {"eps: want >= 0, got nan", Set(&Args::eps, std::nanf(""))},
               {"bias: want memory at a multiple of 16", Set(&Args::bias, View(kF32, {16}, 4))},
               {"residual: want memory at a multiple of 16",
                Set(&Args::residual, View(kF32, {2, 16}, 4))}});
}

TEST_F(BadArgumentsTest, OfLinear) {
  const CudaWeight weight = Weight(kF32, 8, 16), odd = Weight(kF32, 5, 16);
  const DeviceBuffer scratch = *device_->Allocate(8 * 4), small = *device_->Allocate(8 * 4 - 4);
  using Args = LinearArgs;
  const Args plain = {.out = View(kF32, {2, 8}), .input = View(kF32, {2, 16}), .weight = &weight};
  const std::vector<Bad<Args>> bad = {
      {"weight: want a prepared weight", Set(&Args::weight, nullptr)},
      {"weight: want an even number of rows",
       [&](Args& a) {
         a.weight = &odd;
         a.activation = Activation::kSiluMul;
       }},
      {"input: want f32|f16|bf16 [*, 16]", Set(&Args::input, View(kF32, {2, 8}))},
      {"input: want f32, as the weight, got bf16", Set(&Args::input, View(kBF16, {2, 16}))},
      {"input: want rows together", [](Args& a) { a.input = a.input.WithRowStride(20); }},
      {"out: want f32|f16|bf16 [2, 8]", Set(&Args::out, View(kF32, {2, 16}))},
      {"out: want f32|f16|bf16 [2, 4]", Set(&Args::activation, Activation::kSiluMul)},
      {"out: want f32|f16|bf16 [2, 8]", Set(&Args::out, View(kI32, {2, 8}))},
      {"bias: want f32 [8]", Set(&Args::bias, View(kF32, {7}))},
      {"bias: want f32 [8]", Set(&Args::bias, View(kBF16, {8}))},
      {"residual: want f32|f16|bf16 [2, 8]", Set(&Args::residual, View(kF32, {1, 8}))},
      {"residual: want f32, got f16", Set(&Args::residual, View(kF16, {2, 8}))},
      {"soft_cap: want >= 0, got -1", Set(&Args::soft_cap, -1.0f)}};
  const auto run = [&](const Args& args) { return Linear(*device_, args, scratch); };
  Check<Args>(plain, run, bad);

  Args epilogue = plain;
  epilogue.bias = View(kF32, {8});
  Check<Args>(epilogue, run, bad);
  Check<Args>(
      epilogue, run,
      {{"out: want memory at a multiple of 16", Set(&Args::out, View(kF32, {2, 8}, 4))},
       {"bias: want memory at a multiple of 16", Set(&Args::bias, View(kF32, {8}, 4))},
       {"residual: want memory at a multiple of 16", Set(&Args::residual, View(kF32, {2, 8}, 4))}});
  num_enqueued_ = 0;
  const absl::Status status = Linear(*device_, epilogue, small);
  EXPECT_EQ(status.message(), "weight: want at most 7 rows, got 8");
  EXPECT_EQ(num_enqueued_, 0);
}

TEST_F(BadArgumentsTest, OfLinearWithAPackedWeight) {
  const CudaWeight weight(*device_->Allocate(1088), kBF16, 64,
                          {{.num_rows = 8, .packed = WeightType::kQ8_0}});
  // Sums take the first 256 bytes. The rest is for dequantised rows, of 128 bytes here.
  const DeviceBuffer one_row = *device_->Allocate(384), small = *device_->Allocate(344);
  using Args = LinearArgs;
  const Args plain = {
      .out = View(kBF16, {65, 8}), .input = View(kBF16, {65, 64}), .weight = &weight};
  const std::vector<Bad<Args>> bad = {
      {"input: want memory at a multiple of 16 bytes, got 8 past one",
       Set(&Args::input, View(kBF16, {65, 64}, 8))},
      {"input: want bf16, as the weight, got f16", Set(&Args::input, View(kF16, {65, 64}))}};
  const auto run = [&](const Args& args) { return Linear(*device_, args, one_row); };
  Check<Args>(plain, run, bad);
  // Here tokens are multiplied a few at a time, so that their sums fit.
  Args epilogue = plain;
  epilogue.bias = View(kF32, {8});
  Check<Args>(epilogue, run, bad);

  num_enqueued_ = 0;
  EXPECT_EQ(Linear(*device_, plain, small).message(), "weight: want at most 44 cols, got 64");
  EXPECT_EQ(num_enqueued_, 0);
  Args few = plain;
  few.out = View(kBF16, {64, 8});
  few.input = View(kBF16, {64, 64});
  EXPECT_TRUE(Linear(*device_, few, small).ok());
}

TEST_F(BadArgumentsTest, OfMoe) {
  const CudaWeight router = Weight(kF32, 4, 8), half_router = Weight(kF16, 4, 8);
  const CudaWeight up = Weight(kF32, 4 * 2 * 16, 8), down = Weight(kF32, 4 * 8, 16);
  const DeviceBuffer scratch = *device_->Allocate(1 << 14), small = *device_->Allocate(64);
  using Args = MoeArgs;
  const Args good = {.out = View(kF32, {2, 8}, 1024),
                     .input = View(kF32, {2, 8}),
                     .router = &router,
                     .up = &up,
                     .down = &down,
                     .residual = View(kF32, {2, 8}, 1024),
                     .num_experts_per_token = 2};
  Check<Args>(good, [&](const Args& args) { return Moe(*device_, args, scratch); },
              {{"router: want a prepared weight", Set(&Args::router, nullptr)},
               {"router: want f32, as the input, got f16", Set(&Args::router, &half_router)},
               {"up: want [128, 8], got [32, 16]", Set(&Args::up, &down)},
               {"input: want f32|f16|bf16 [*, *]", Set(&Args::input, View(kI32, {2, 8}))},
               {"out: want memory that is not the input's", [](Args& a) { a.out = a.input; }},
               {"out: want memory at a multiple of 16", Set(&Args::out, View(kF32, {2, 8}, 1028))},
               {"residual: want memory at a multiple of 16",
                Set(&Args::residual, View(kF32, {2, 8}, 1028))},
               {"num_experts_per_token: want 1 to 4", Set(&Args::num_experts_per_token, 5)}});
  num_enqueued_ = 0;
  EXPECT_THAT(std::string(Moe(*device_, good, small).message()), HasSubstr("at most 64 bytes"));
  EXPECT_EQ(num_enqueued_, 0);

  // Experts of 32 hidden units, packed. The others have 40 hidden units, or their rows are not
  // together.
  const auto packed = [&](int64_t cols, std::vector<CudaWeightPart> parts) {
    for (CudaWeightPart& part : parts) part.packed = WeightType::kQ8_0;
    return CudaWeight(*device_->Allocate(1 << 19), kBF16, cols, std::move(parts));
  };
  const CudaWeight bf16_router = Weight(kBF16, 4, 32);
  const CudaWeight bf16_up = Weight(kBF16, 256, 32), bf16_down = Weight(kBF16, 128, 32);
  const CudaWeight packed_router = packed(32, {{.num_rows = 4}});
  const CudaWeight packed_up = packed(32, {{.num_rows = 256}});
  const CudaWeight up_of_two_parts =
      packed(32, {{.num_rows = 128}, {.first_row = 128, .num_rows = 128, .offset = 1 << 18}});
  const CudaWeight packed_down = packed(32, {{.num_rows = 128}});
  const CudaWeight up_of_40 = packed(32, {{.num_rows = 320}}), down_of_40 = Weight(kBF16, 128, 40);
  const Args with_packed = {.out = View(kBF16, {2, 32}, 1024),
                            .input = View(kBF16, {2, 32}),
                            .router = &bf16_router,
                            .up = &packed_up,
                            .down = &packed_down,
                            .num_experts_per_token = 2};
  constexpr const char* kWant = "up: want a weight of Backend::PrepareMoeWeight, got another";
  Check<Args>(with_packed, [&](const Args& args) { return Moe(*device_, args, scratch); },
              {{kWant, Set(&Args::up, &up_of_two_parts)},
               {kWant,
                [&](Args& a) {
                  a.up = &up_of_40;
                  a.down = &down_of_40;
                }},
               {"input: want memory at a multiple of 16 bytes, got 8",
                Set(&Args::input, View(kBF16, {2, 32}, 8))},
               {"input: want memory at a multiple of 16 bytes, got 8", [&](Args& a) {
                  a.router = &packed_router;
                  a.up = &bf16_up;
                  a.down = &bf16_down;
                  a.input = View(kBF16, {2, 32}, 8);
                }}});
}

TEST_F(BadArgumentsTest, OfQkvPost) {
  using Args = QkvPostArgs;
  Check<Args>(
      {.query = View(kF32, {2, 4, 8}),
       .kv_cache = View(kF32, {3, 2, 2, 4, 8}),
       .qkv = View(kF32, {2, 64}),
       .positions = View(kI32, {2}),
       .slot_mapping = View(kI64, {2}),
       .rope_table = View(kF32, {5, 4, 2}),
       .rope_layout = RopeLayout::kHalfSplit,
       .bias = View(kF32, {64}),
       .qk_norm = {.query_weight = View(kF32, {8}), .key_weight = View(kF32, {8})}},
      [&](const Args& args) { return QkvPost(*device_, args); },
      {{"query: want f32|f16|bf16 [*, *, *]", Set(&Args::query, View(kF32, {2, 32}))},
       {"query: want f32|f16|bf16 [*, *, *]", Set(&Args::query, View(kI32, {2, 4, 8}))},
       {"query: want num_heads a multiple of num_kv_heads = 2, got 3",
        [&](Args& a) {
          a.query = View(kF32, {2, 3, 8});
          a.qkv = View(kF32, {2, 56});
          a.bias = {};
        }},
       {"query: want num_heads a multiple of num_kv_heads = 0, got 4",
        Set(&Args::kv_cache, View(kF32, {3, 2, 0, 4, 8}))},
       {"kv_cache: want keys and values of an even size on CUDA, got 7",
        [&](Args& a) {
          a.query = View(kF32, {2, 4, 7});
          a.kv_cache = View(kF32, {3, 2, 2, 4, 7});
          a.qkv = View(kF32, {2, 56});
          a.rope_layout = RopeLayout::kNone;
          a.bias = {};
          a.qk_norm = {};
        }},
       {"keys of kv_cache: want f32|f16|bf16|fp8_e4m3 [*, *, *, 8]",
        Set(&Args::kv_cache, View(kF32, {3, 2, 2, 4, 16}))},
       {"keys of kv_cache: want f32|f16|bf16|fp8_e4m3 [*, *, *, 8]",
        Set(&Args::kv_cache, View(kF32, {3, 1, 2, 4, 8}))},
       {"keys of kv_cache: want f32|f16|bf16|fp8_e4m3 [*, *, *, 8]",
        Set(&Args::kv_cache, View(kI32, {3, 2, 2, 4, 8}))},
       {"kv_cache: want block_size > 0", Set(&Args::kv_cache, View(kF32, {3, 2, 2, 0, 8}))},
       {"qkv: want f32|f16|bf16 [2, 64]", Set(&Args::qkv, View(kF32, {2, 56}))},
       {"qkv: want f32, got bf16", Set(&Args::qkv, View(kBF16, {2, 64}))},
       {"slot_mapping: want int64 [2]", Set(&Args::slot_mapping, View(kI32, {2}))},
       {"slot_mapping: want int64 [2]", Set(&Args::slot_mapping, View(kI64, {1}))},
       {"bias: want f32 [64]", Set(&Args::bias, View(kF32, {63}))},
       {"clip: want >= 0, got -1", Set(&Args::clip, -1.0f)},
       {"clip: want >= 0, got nan", Set(&Args::clip, std::nanf(""))},
       {"qk_norm.query_weight: want f32 [32]",
        [&](Args& a) { a.qk_norm.query_weight = View(kF32, {16}); }},
       {"qk_norm.key_weight: want f32 [8]", [](Args& a) { a.qk_norm.key_weight = {}; }},
       {"qk_norm.eps: want >= 0", [](Args& a) { a.qk_norm.eps = -1.0f; }},
       {"positions: want int32 [2]", Set(&Args::positions, View(kI64, {2}))},
       {"positions: want int32 [2]", Set(&Args::positions, {})},
       {"query_scales: want f32 [5]", Set(&Args::query_scales, View(kF32, {4}))},
       {"rope_table: want f32 [*, *, 2]", Set(&Args::rope_table, View(kF32, {5, 8}))},
       {"rope_table: want rope_dim / 2 at most 4", Set(&Args::rope_table, View(kF32, {5, 5, 2}))}});
}

// Tests attention in bf16, which runs on tensor cores, and in f32, which does not.
TEST_F(BadArgumentsTest, OfPagedAttention) {
  const std::vector<int32_t> contexts = {20}, queries = {1};
  const AttentionPlanArgs step = {
      .context_lens = contexts, .query_lens = queries, .heads = {4, 2, 64, 64}};
  const CudaAttentionPlan empty;
  for (const DType dtype : {kBF16, kF32}) {
    SCOPED_TRACE(Name(dtype));
    const auto backend = *CreateCudaBackend(
        std::make_unique<testing::CountingDevice>(testing::MakeDevice(), num_enqueued_),
        {.activation_dtype = dtype});
    memory_ = *backend->Allocate(1 << 16);
    using Args = PagedAttentionArgs;
    Check<Args>(
        {.out = View(dtype, {1, 4, 64}, 1 << 15),
         .query = View(dtype, {1, 4, 64}),
         .kv_cache = View(dtype, {3, 2, 2, 16, 64}),
         .block_table = View(kI32, {1, 2}),
         .context_lens = View(kI32, {1}),
         .query_starts = View(kI32, {2}),
         .alibi_slopes = View(kF32, {4}),
         .sinks = View(kF32, {4}),
         .scale = 0.125f,
         .plan = *backend->Plan(step)},
        [&](const Args& args) { return backend->PagedAttention(args); },
        {{"query: want key_dim a multiple of 8, at most 256, got 12",
          Set(&Args::query, View(dtype, {1, 4, 12}))},
         {"query: want key_dim a multiple of 8, at most 256, got 264",
          Set(&Args::query, View(dtype, {1, 4, 264}))},
         {"query: want num_heads a multiple of num_kv_heads = 3, got 4",
          Set(&Args::kv_cache, View(dtype, {2, 2, 3, 16, 64}))},
         {"out: want f32|f16|bf16 [1, 4, 64]", Set(&Args::out, View(dtype, {1, 2, 64}))},
         {"out: want", Set(&Args::out, View(kF16, {1, 4, 64}))},
         {"keys of kv_cache: want f32|f16|bf16|fp8_e4m3 [*, *, *, 64]",
          Set(&Args::kv_cache, View(dtype, {3, 2, 2, 16, 32}))},
         {"block_table: want int32", Set(&Args::block_table, View(kI64, {1, 2}))},
         {"block_table: want blocks for 20 tokens of sequence 0, got 16",
          Set(&Args::block_table, View(kI32, {1, 1}))},
         {"context_lens: want int32 [1]", Set(&Args::context_lens, View(kI32, {2}))},
         {"query_starts: want int32 [2]", Set(&Args::query_starts, View(kI32, {1}))},
         {"alibi_slopes: want f32 [4]", Set(&Args::alibi_slopes, View(kF32, {3}))},
         {"alibi_slopes: want f32 [4]", Set(&Args::alibi_slopes, View(kBF16, {4}))},
         {"alibi_is_rounded: want false without alibi_slopes",
          [](Args& a) {
            a.alibi_is_rounded = true;
            a.alibi_slopes = TensorView();
          }},
         {"sinks: want f32 [4]", Set(&Args::sinks, View(kF32, {5}))},
         {"sinks: want f32 [4]", Set(&Args::sinks, View(kF16, {4}))},
         {"soft_cap: want finite and >= 0, got -1", Set(&Args::soft_cap, -1.0f)},
         {"pattern: want tokens > 0, got -1", Set(&Args::pattern, AttentionPattern::Window(-1))},
         {"pattern: want no tokens where all keys are seen, got 5",
          Set(&Args::pattern, AttentionPattern{.tokens = 5})},
         {"plan: want", Set(&Args::plan, nullptr)},
         {"plan: want", Set(&Args::plan, &empty)}});
    memory_ = DeviceBuffer();
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
