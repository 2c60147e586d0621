// Tests that a deterministic CUDA backend gives a request the same bits alone, beside others, in
// any chunks of its prompt, after a cache hit, after preemption and with drafts. The emulated
// device adds up a product in an order that depends on its shape (emulator/host_gemm.h). So a
// product of another shape would change bits here, as it may with cuBLASLt.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/product/fixed_rows_gemm.h"
#include "tests/kernels/cuda/recording_device.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

using kernels::DType;
using kernels::WeightType;
using testing::CollectingSink;
using testing::DeviceLog;
using testing::EngineHarness;
using testing::ExpectSame;
using testing::GreedyParams;
using testing::HarnessOptions;
using testing::RandomIds;
using testing::RecordingDevice;

struct Variant {
  std::string name;
  DType dtype = DType::kBF16;
  bool fp8_cache = false;
  bool alibi = false;
  bool mixture = false;
  WeightType weight_type = WeightType::kF32;
  std::vector<kernels::AttentionPattern> layer_patterns = {{}, {}};
};

class CudaDeterministicTest : public ::testing::TestWithParam<Variant> {
 protected:
  std::unique_ptr<EngineHarness> Make(HarnessOptions options = {}) {
    const Variant& variant = GetParam();
    // Only kernels of this head_dim read lists of tiles.
    options.head_dim = variant.layer_patterns[0].has_holes() ? 128 : 64;
    options.kv_dtype = variant.fp8_cache ? DType::kF8E4M3 : variant.dtype;
    if (variant.fp8_cache) options.cache_scales = {.k = 0.003f, .v = 0.7f};
    options.weight_type = variant.weight_type;
    options.layer_patterns = variant.layer_patterns;
    options.window_blocks = 256;
    options.make_backend = [this, dtype = variant.dtype] {
      return *kernels::cuda::CreateCudaBackend(std::make_unique<RecordingDevice>(log_),
                                               {.activation_dtype = dtype,
                                                .linear_scratch_bytes = 1 << 20,
                                                .pipeline_depth = pipeline_depth_,
                                                .records = records_,
                                                .deterministic = deterministic_});
    };
    if (variant.mixture) return EngineHarness::TinyMixture(options);
    return variant.alibi ? EngineHarness::TinyAlibi(options) : EngineHarness::TinyLlama(options);
  }
  // Returns the answer of an engine that runs nothing else and computes the prompt in one step.
  CollectingSink::Sample Alone(const GenerateParams& params) {
    return Make({.max_num_batched_tokens = 512})->Generate(params);
  }

  int32_t pipeline_depth_ = 1;
  bool records_ = true, deterministic_ = true;
  DeviceLog log_;
};

GenerateParams SampledParams(TokenIds prompt, int32_t max_tokens, uint64_t seed) {
  GenerateParams params = GreedyParams(std::move(prompt), max_tokens);
  params.sampling.temperature = 0.9f;
  params.sampling.seed = seed;
  return params;
}

// Runs `params` with `num_others` other requests, and returns its answer.
CollectingSink::Sample AmongOthers(EngineHarness& harness, const GenerateParams& params,
                                   uint32_t num_others) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < num_others; ++i) {
    all.push_back(SampledParams(RandomIds(3 + 7 * i % 40, 100 + i), 12, i));
    if (i == num_others / 2) all.push_back(params);
  }
  const auto sinks = harness.SubmitTogether(all);
  for (const auto& sink : sinks) EXPECT_TRUE(sink->WaitFinished());
  return sinks[num_others / 2 + 1]->sample();
}

TEST_P(CudaDeterministicTest, AloneAsAmong64InAnyChunks) {
  const GenerateParams params = SampledParams(RandomIds(150, 1), 12, 42);
  const CollectingSink::Sample alone = Alone(params);
  for (const int32_t tokens : {16, 37, 100}) {
    SCOPED_TRACE(tokens);
    ExpectSame(Make({.max_num_seqs = 8, .max_num_batched_tokens = tokens})->Generate(params),
               alone);
  }
  const auto harness =
      Make({.num_blocks = 1024, .max_num_seqs = 64, .max_num_batched_tokens = 100});
  ExpectSame(AmongOthers(*harness, params, 63), alone);
  EXPECT_EQ(harness->engine().stats().preemptions, 0);
  harness->Stop();
  EXPECT_EQ(log_.products.empty(), GetParam().weight_type != WeightType::kF32);
  for (const auto& [rows, cols, depth] : log_.products) EXPECT_EQ(rows, kernels::cuda::kFixedRows);
}

// In the other mode, the bits differ. So this test sees a difference where there is one.
TEST_P(CudaDeterministicTest, AnEngineThatIsNotDeterministicGivesOtherBits) {
  const GenerateParams params = SampledParams(RandomIds(150, 1), 4, 42);
  deterministic_ = false;
  const CollectingSink::Sample alone = Alone(params);
  const CollectingSink::Sample in_chunks =
      Make({.max_num_seqs = 8, .max_num_batched_tokens = 37})->Generate(params);
  ASSERT_EQ(alone.logprobs.size(), in_chunks.logprobs.size());
  EXPECT_NE(alone.logprobs[0].chosen.logprob, in_chunks.logprobs[0].chosen.logprob);
}

TEST_P(CudaDeterministicTest, AfterAHitAndAFork) {
  GenerateParams params = SampledParams(RandomIds(90, 3), 8, 5);
  params.sampling.n = 3;
  const auto harness = Make({.max_num_batched_tokens = 40});
  for (const bool hit : {false, true}) {
    SCOPED_TRACE(hit);
    const auto sink = harness->Submit(params);
    ASSERT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->summary().usage.cached_tokens > 0, hit);
    testing::ExpectSamplesAreSingleRequests(
        *sink, params, [this](const GenerateParams& one) { return Alone(one); });
  }
  EXPECT_GT(harness->engine().stats().block_copies, 0);
}

TEST_P(CudaDeterministicTest, AfterPreemption) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 4; ++i) all.push_back(SampledParams(RandomIds(30 + i, 50 + i), 50, i));
  const auto harness = Make({.num_blocks = 12, .max_num_batched_tokens = 40});
  const auto sinks = harness->SubmitTogether(all);
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  EXPECT_GT(harness->engine().stats().preemptions, 0);
  harness->ExpectIdleIsEmpty();
  // Not before: a second engine would write to the log at the same time.
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSame(sinks[i]->sample(), Alone(all[i]));
  }
}

TEST_P(CudaDeterministicTest, AStepAheadAndReplaysChangeNothing) {
  const GenerateParams params = SampledParams(RandomIds(50, 1), 12, 42);
  const CollectingSink::Sample alone = Alone(params);
  for (const auto& [depth, records] : {std::pair(0, false), {1, false}, {0, true}}) {
    SCOPED_TRACE(depth);
    pipeline_depth_ = depth;
    records_ = records;
    ExpectSame(AmongOthers(*Make(), params, 7), alone);
  }
}

// Drafts are verified in a chunk of several tokens.
TEST_P(CudaDeterministicTest, WithDrafts) {
  GenerateParams params = SampledParams(RandomIds(30, 1), 60, 42);
  params.sampling.allowed_token_ids = {65, 66, 97};
  const CollectingSink::Sample alone = Alone(params);
  pipeline_depth_ = 0;
  const testing::FakeClock clock;  // stands still, so that drafts cost nothing
  const auto harness = Make({.max_draft_tokens = 5, .clock = &clock});
  ExpectSame(AmongOthers(*harness, params, 3), alone);
  EXPECT_GT(harness->engine().stats().accepted_tokens, 0);
  EXPECT_GT(harness->engine().stats().drafted_tokens, harness->engine().stats().accepted_tokens);
}

INSTANTIATE_TEST_SUITE_P(
    Models, CudaDeterministicTest,
    ::testing::Values(
        Variant{.name = "Rope"}, Variant{.name = "F16", .dtype = DType::kF16},
        Variant{.name = "Fp8Cache", .fp8_cache = true}, Variant{.name = "Alibi", .alibi = true},
        Variant{.name = "Packed", .weight_type = WeightType::kQ5_0},
        Variant{.name = "Window", .layer_patterns = {kernels::AttentionPattern::Window(50), {}}},
        Variant{.name = "Blocks",
                .layer_patterns = {kernels::AttentionPattern::Blocks(64, 1, 3, 1), {}}}),
    [](const auto& variant) { return variant.param.name; });

class MixtureCudaDeterministicTest : public CudaDeterministicTest {};

// The other requests decide how many rows an expert has.
TEST_P(MixtureCudaDeterministicTest, AloneAsAmongOthersInChunks) {
  const GenerateParams params = SampledParams(RandomIds(60, 1), 8, 42);
  const CollectingSink::Sample alone = Alone(params);
  const auto harness = Make({.max_num_batched_tokens = 37});
  ExpectSame(AmongOthers(*harness, params, 15), alone);
}

INSTANTIATE_TEST_SUITE_P(Models, MixtureCudaDeterministicTest,
                         ::testing::Values(Variant{.name = "Mixture", .mixture = true}),
                         [](const auto& variant) { return variant.param.name; });

class LongCudaDeterministicTest : public CudaDeterministicTest {};

// The second prompt and its answer need more pieces of attention than the first.
TEST_P(LongCudaDeterministicTest, AfterItsWarmUpNoStepRecordsOrAllocates) {
  const auto harness = Make({.max_num_seqs = 3,
                             .max_num_batched_tokens = 256,
                             .max_model_len = 1100,
                             .warms_up_every_size = true});
  log_ = {};
  const auto sinks = harness->SubmitTogether({SampledParams(RandomIds(40, 1), 6, 1),
                                              SampledParams(RandomIds(1020, 2), 9, 2),
                                              SampledParams(RandomIds(300, 3), 5, 3)});
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  harness->Stop();
  EXPECT_GT(log_.replays, 0);
  for (const testing::HostCalls& step : log_.steps) {
    EXPECT_EQ(step.recordings, 0);
    EXPECT_EQ(step.allocations, 0);
    EXPECT_EQ(step.synchronizations, 0);
  }
}

// Attention is cut at position 1024.
TEST_P(LongCudaDeterministicTest, AcrossACutOfAttention) {
  const GenerateParams params = SampledParams(RandomIds(1020, 1), 8, 42);
  const auto make = [&](int32_t tokens) {
    return Make({.max_num_batched_tokens = tokens, .max_model_len = 1100});
  };
  const CollectingSink::Sample alone = make(1024)->Generate(params);
  const auto harness = make(300);
  ExpectSame(AmongOthers(*harness, params, 3), alone);
  ExpectSame(harness->Generate(params), alone);
  EXPECT_GT(harness->engine().stats().prompt_tokens_cached, 1000);
}

INSTANTIATE_TEST_SUITE_P(Models, LongCudaDeterministicTest,
                         ::testing::Values(Variant{.name = "Alibi", .alibi = true}),
                         [](const auto& variant) { return variant.param.name; });

}  // namespace
}  // namespace quire::engine
