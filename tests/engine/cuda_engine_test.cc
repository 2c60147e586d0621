// Tests whole engines on the CUDA backend and this build's device. Requests run in batches, with
// shared blocks, windows and preemption. Engines in float32 test the plain attention kernel, and
// engines in bfloat16 test the attention kernel for tensor cores. The requests are short enough for
// the emulator.

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/cuda/recording_device.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

using kernels::DType;
using testing::CollectingSink;
using testing::DeviceLog;
using testing::EngineHarness;
using testing::ExpectSame;
using testing::ExpectSamplesAreSingleRequests;
using testing::GreedyParams;
using testing::HarnessOptions;
using testing::RandomIds;
using testing::RecordingDevice;

struct Types {
  DType activations, cache;
};

class CudaEngineTest : public ::testing::TestWithParam<Types> {
 protected:
  static DType activations() { return GetParam().activations; }
  // Returns true if activations and cache have one 16-bit dtype, which a head_dim of 32 on tensor
  // cores needs.
  static bool HasOneType16() {
    return activations() != DType::kF32 && GetParam().cache == activations();
  }

  // Returns options for the test's dtypes. A step has room for a whole prompt of these tests:
  // cuda_deterministic_test.cc has tests of chunks.
  HarnessOptions Options(HarnessOptions options = {}) {
    const DType dtype = activations();
    options.max_num_batched_tokens = std::max(options.max_num_batched_tokens, 256);
    options.head_dim = head_dim_;
    options.kv_dtype = GetParam().cache;
    options.make_backend = [this, dtype] {
      return *kernels::cuda::CreateCudaBackend(
          std::make_unique<RecordingDevice>(log_),
          {.activation_dtype = dtype,
           .linear_scratch_bytes = deterministic_ ? 1 << 20 : 1 << 16,
           .pipeline_depth = pipeline_depth_,
           .records = records_,
           .deterministic = deterministic_,
           .prefill_attention = prefill_attention_,
           .shared_prefix_bytes = shared_prefix_bytes_});
    };
    return options;
  }
  std::unique_ptr<EngineHarness> Make(HarnessOptions options = {}) {
    return EngineHarness::TinyLlama(Options(std::move(options)));
  }
  CollectingSink::Sample Alone(const GenerateParams& params) { return Make()->Generate(params); }

  int64_t NumTensorCoreLaunches() const {
    constexpr int64_t kMoreThanOthers = 20 << 10;
    return std::ranges::count_if(log_.shared_bytes,
                                 [](int64_t bytes) { return bytes > kMoreThanOthers; });
  }

  int32_t head_dim_ = 64;
  int32_t pipeline_depth_ = 1;
  bool records_ = true;
  bool deterministic_ = true;
  kernels::cuda::MatrixInstruction prefill_attention_ = kernels::cuda::MatrixInstruction::kMma;
  int64_t shared_prefix_bytes_ = 0;
  DeviceLog log_;
};

GenerateParams SampledParams(TokenIds prompt, int32_t max_tokens, uint64_t seed) {
  GenerateParams params = GreedyParams(std::move(prompt), max_tokens);
  params.sampling.temperature = 0.9f;
  params.sampling.top_p = 0.95f;
  params.sampling.seed = seed;
  return params;
}

TEST_P(CudaEngineTest, RunsTheKernelThatItsTypesHave) {
  Alone(GreedyParams(RandomIds(20, 1), 2));
  if (activations() == DType::kF32) {
    EXPECT_EQ(NumTensorCoreLaunches(), 0);
  } else {
    EXPECT_GE(NumTensorCoreLaunches(), 2 * 2);  // 2 layers, 2 steps
  }
}

TEST_P(CudaEngineTest, CountsWhatTheDeviceDid) {
  const auto harness = Make();
  log_.steps.clear();  // those of the warm-up
  constexpr int32_t kTokens = 6;
  harness->Generate(GreedyParams(RandomIds(20, 1), kTokens));
  ASSERT_TRUE(harness->engine().WaitIdle(absl::Minutes(1)).ok());
  testing::HostCalls did;
  for (const testing::HostCalls& step : log_.steps) {
    did.uploads += step.uploads;
    did.uploaded_bytes += step.uploaded_bytes;
    did.replays += step.replays;
  }
  EXPECT_GE(did.replays, kTokens - 1) << "decodes are replayed";
  const Stats stats = harness->engine().stats();
  const auto counted = [&](DeviceCount count) { return stats.device[static_cast<size_t>(count)]; };
  EXPECT_EQ(counted(DeviceCount::kUploads), did.uploads);
  EXPECT_EQ(counted(DeviceCount::kUploadedBytes), did.uploaded_bytes);
  EXPECT_EQ(counted(DeviceCount::kReplays), did.replays);
  EXPECT_EQ(counted(DeviceCount::kRecordings), 0) << "the warm-up made all recordings";
  EXPECT_EQ(counted(DeviceCount::kAllocations), 0);
  EXPECT_EQ(counted(DeviceCount::kSynchronizations), 0);
  EXPECT_EQ(counted(DeviceCount::kSampledRows), kTokens);
  constexpr int64_t kLayers = 2;
  const bool is_plain = activations() == DType::kF32;
  EXPECT_EQ(counted(DeviceCount::kPlainAttention), is_plain ? kLayers * stats.steps : 0);
  EXPECT_EQ(counted(DeviceCount::kTensorCoreAttention), is_plain ? 0 : kLayers * stats.steps);
}

// Returns requests of every kind. Some end by a stop string or a stop token. With a pipeline depth
// of 1, such a request ends while its next step is still in flight.
std::vector<GenerateParams> RequestsOfEveryKind() {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 8; ++i) {
    all.push_back(SampledParams(RandomIds(9 + 5 * i, 200 + i), 24, i));
  }
  all[0].sampling.repetition_penalty = 1.4f;
  all[0].sampling.presence_penalty = 0.5f;
  all[1].sampling.n = 3;
  all[1].sampling.frequency_penalty = 0.7f;
  all[2].stop.stop = {"e", "a", "t", "s"};
  all[3].output.prompt_logprobs = 2;
  all[3].sampling.logit_bias = {{.token_id = 70, .bias = 2.5f}};
  all[4].sampling.temperature = 0.0f;
  all[4].stop.min_tokens = 4;
  all[4].stop.stop_token_ids = RandomIds(60, 3);
  for (int32_t id = 0; id < 200; ++id) all[5].sampling.allowed_token_ids.push_back(id);
  all[6].continuations = {RandomIds(1, 5), RandomIds(20, 6), RandomIds(7, 7)};
  all[6].sampling = {};
  all[6].stop = {};
  all[7].stop.max_tokens = 1;
  return all;
}

TEST_P(CudaEngineTest, AStepAheadAndReplaysChangeNothing) {
  const std::vector<GenerateParams> all = RequestsOfEveryKind();
  std::vector<std::shared_ptr<CollectingSink>> want;
  for (const auto& [depth, records] : {std::pair(0, false), {1, false}, {0, true}, {1, true}}) {
    SCOPED_TRACE(depth);
    SCOPED_TRACE(records);
    pipeline_depth_ = depth;
    records_ = records;
    const auto harness = Make();
    log_ = {};  // without the marks of weights
    const auto sinks = harness->SubmitTogether(all);
    for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
    harness->ExpectIdleIsEmpty();
    harness->Stop();
    EXPECT_EQ(log_.most_marks, 1 + depth);
    EXPECT_EQ(log_.replays > 10, records);
    if (want.empty()) {
      want = sinks;
      continue;
    }
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(sinks[i]->status(), want[i]->status());
      for (int32_t k = 0; k < 3; ++k) ExpectSame(sinks[i]->sample(k), want[i]->sample(k));
      const auto prompt = sinks[i]->prompt_logprobs(), want_prompt = want[i]->prompt_logprobs();
      ASSERT_EQ(prompt.size(), want_prompt.size());
      for (size_t p = 0; p < prompt.size(); ++p) {
        EXPECT_EQ(prompt[p].chosen.logprob, want_prompt[p].chosen.logprob);
      }
    }
  }
}

// Returns requests of every way to sample, with 16 streams of `num_tokens` tokens.
std::vector<GenerateParams> StreamsOfEveryKind(int32_t num_tokens) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 14; ++i) {
    all.push_back(SampledParams(RandomIds(3 + i % 5, 100 + i), num_tokens, i));
  }
  all[1].sampling.repetition_penalty = 1.4f;
  all[2].sampling.presence_penalty = 0.5f;
  all[2].sampling.penalty_last_n = 7;
  all[3].sampling.n = 3;
  all[3].sampling.frequency_penalty = 0.7f;
  all[4].sampling.logit_bias = {{.token_id = 70, .bias = 2.5f}, {.token_id = 71, .bias = -1.0f}};
  for (int32_t id = 0; id < 200; ++id) all[5].sampling.allowed_token_ids.push_back(id);
  all[6].stop.min_tokens = num_tokens;
  all[6].stop.stop_token_ids = RandomIds(60, 3);
  all[7].sampling.temperature = 0.0f;
  all[8].sampling.top_k = 5;
  all[9].sampling.typical_p = 0.8f;
  all[10].sampling.min_p = 0.05f;
  all[11].sampling.penalty_last_n = 20;
  all[11].sampling.repetition_penalty = 0.8f;
  all[11].sampling.logit_bias = all[4].sampling.logit_bias;
  all[11].sampling.allowed_token_ids = all[5].sampling.allowed_token_ids;
  return all;
}

// The host enqueues little of a step in which the sequences of the step before go on, and waits for
// nothing but the result of that step. In the step in which a sequence starts, the data
// of its draws comes in an upload of its own.
TEST_P(CudaEngineTest, AStepThatGoesOnUploadsLittleAndNeitherAllocatesNorWaits) {
  constexpr int32_t kStreams = 16, kTokens = 60;
  deterministic_ = false;
  const auto harness = Make();
  log_ = {};  // without the marks of weights
  const auto sinks = harness->SubmitTogether(StreamsOfEveryKind(kTokens));
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  harness->Stop();
  // The first stream may be ahead by a few steps, and the last steps have fewer streams.
  ASSERT_GT(log_.steps.size(), kTokens);
  int64_t uploaded_bytes = 0;
  for (size_t i = 12; i < kTokens - 4; ++i) {
    SCOPED_TRACE(i);
    const testing::HostCalls& step = log_.steps[i];
    uploaded_bytes += step.uploaded_bytes;
    EXPECT_EQ(step.replays, 1);
    EXPECT_EQ(step.recordings, 0);
    EXPECT_EQ(step.uploads, 1);
    EXPECT_LE(step.uploaded_bytes, kStreams * 64);
    EXPECT_LE(step.launches, 6);  // block tables, plan, sampler's rows, sampling, drawn ids
    EXPECT_EQ(step.allocations, 0);
    EXPECT_EQ(step.synchronizations, 0);
  }
  constexpr int64_t kSequenceSteps = (kTokens - 4 - 12) * kStreams;
  RecordProperty("uploaded_bytes_of_a_sequence",
                 std::to_string(static_cast<double>(uploaded_bytes) / kSequenceSteps));
}

TEST_P(CudaEngineTest, AfterItsWarmUpNoStepRecordsOrAllocatesOrMeetsANewProductOrKernel) {
  deterministic_ = false;
  const auto harness =
      Make({.max_num_seqs = 10, .max_num_batched_tokens = 256, .warms_up_every_size = true});
  EXPECT_EQ(log_.new_in_recordings, 0);
  const std::set<std::array<int64_t, 3>> products = log_.products;
  const std::set<const void*> kernels = log_.kernels;
  log_ = {};
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 10; ++i) {
    all.push_back(SampledParams(RandomIds(5 + 11 * i, 300 + i), 4 + static_cast<int32_t>(i), i));
  }
  for (const uint32_t i : {3, 8}) all[i].output.prompt_logprobs = 2;
  all[4].sampling.n = 3;  // its samples copy the last block of the prompt
  all[6].sampling.repetition_penalty = 1.4f;
  all[7].sampling.logit_bias = {{.token_id = 70, .bias = 2.5f}};
  for (int32_t id = 0; id < 200; ++id) all[9].sampling.allowed_token_ids.push_back(id);
  all[5].stop.max_tokens = 60;
  all[5].cache = {.sink_tokens = 16, .window_tokens = 32};
  const auto sinks = harness->SubmitTogether(all);
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  EXPECT_GT(harness->engine().stats().block_copies, 0);
  harness->Stop();
  ASSERT_GT(log_.steps.size(), 10);
  for (const testing::HostCalls& step : log_.steps) {
    EXPECT_EQ(step.recordings, 0);
    EXPECT_EQ(step.allocations, 0);
    EXPECT_EQ(step.synchronizations, 0);
  }
  EXPECT_GT(log_.products.size(), 0);
  EXPECT_TRUE(std::ranges::includes(products, log_.products));
  EXPECT_TRUE(std::ranges::includes(kernels, log_.kernels));
  EXPECT_TRUE(std::ranges::any_of(log_.products, [](const auto& product) {
    return product[0] > 10 && product[1] == EngineHarness::kTinyShape.vocab_size;
  }));
}

// By the host's clock each step takes 200 ms.
TEST_P(CudaEngineTest, ThePacerLearnsTheTimesOfTheDevice) {
  constexpr int32_t kPromptLen = 160;
  for (const double seconds : {0.2, 1e-5}) {
    testing::FakeClock clock;
    log_.seconds_between = seconds;
    const auto harness = Make({.max_step_time = absl::Milliseconds(60), .clock = &clock});
    harness->before_forward() = [&clock] { clock.Advance(absl::Milliseconds(200)); };
    // The warm-up took no time by this clock. One step raises a price by half at most.
    harness->Generate(GreedyParams(RandomIds(4, 3), 60));
    const auto stream = harness->Submit(GreedyParams(RandomIds(4, 1), 200));
    ASSERT_TRUE(stream->WaitDeltas(1));
    GenerateParams params = GreedyParams(RandomIds(kPromptLen, 2), 1);
    params.output.prompt_logprobs = 0;  // each chunk of the prompt gives a delta
    const auto prompt = harness->Submit(params);
    ASSERT_TRUE(prompt->WaitFinished());
    EXPECT_EQ(stream->sample().finish_reason, FinishReason::kNone);
    harness->handles[0]->Cancel();
    harness->Stop();
    if (seconds > 0.06) {
      EXPECT_EQ(prompt->num_prompt_chunks(), kPromptLen / 8);  // always allowed
    } else {
      EXPECT_EQ(prompt->num_prompt_chunks(), 3);  // a step computes 64 logits of prompts
    }
  }
}

// On tensor cores, the attention of a long sequence is divided into pieces. The sequences of this
// test grow, so the number of pieces grows too.
class DividedAttentionTest : public CudaEngineTest {};

TEST_P(DividedAttentionTest, ReplaysChangeNothing) {
  deterministic_ = false;
  std::vector<CollectingSink::Sample> want;
  for (const bool records : {false, true}) {
    records_ = records;
    const auto harness = Make({.max_num_batched_tokens = 320});
    const auto sinks = harness->SubmitTogether(
        {GreedyParams(RandomIds(240, 1), 30), GreedyParams(RandomIds(300, 2), 30)});
    for (size_t i = 0; i < sinks.size(); ++i) {
      ASSERT_TRUE(sinks[i]->WaitFinished());
      if (records) {
        ExpectSame(sinks[i]->sample(), want[i]);
      } else {
        want.push_back(sinks[i]->sample());
      }
    }
  }
}

// Returns how far apart the same differences of logits may be in two engines, of which at least one
// rounds by up to `rounding`. A logit of the tiny models has 32 independent roundings, and is off
// by rounding * sqrt(32) of the logits' standard deviation (DecoderCudaTest). That deviation
// is 1.45: the head has a gain of 2.5 / sqrt(3). Of the difference of two such logits, six standard
// deviations are allowed.
double BoundOf(double rounding) { return 6 * std::sqrt(2.0) * 1.45 * rounding * std::sqrt(32.0); }
constexpr double kBf16Rounding = 0x1p-8;

// Compares greedy samples up to the first token that differs. This token must be one of two that
// are nearly as likely.
void ExpectAgreement(const CollectingSink::Sample& got, const CollectingSink::Sample& want) {
  const double bound = BoundOf(kBf16Rounding);
  ASSERT_EQ(got.token_ids.size(), want.token_ids.size());
  for (size_t i = 0; i < got.token_ids.size(); ++i) {
    SCOPED_TRACE(i);
    if (got.token_ids[i] != want.token_ids[i]) {
      const auto& top = want.logprobs[i].top;
      const auto other = std::ranges::find(top, got.token_ids[i], &kernels::TokenLogprob::token_id);
      ASSERT_NE(other, top.end());
      EXPECT_LE(want.logprobs[i].chosen.logprob - other->logprob, bound);
      return;
    }
    EXPECT_NEAR(got.logprobs[i].chosen.logprob, want.logprobs[i].chosen.logprob, bound);
  }
}

// Decodes that share their first keys read them together. Results then differ by the roundings of
// bfloat16 from those of decodes that read their keys alone.
class SharedPrefixTest : public CudaEngineTest {
 protected:
  using Samples = std::vector<CollectingSink::Sample>;

  SharedPrefixTest() { deterministic_ = false; }

  // Calls run(harness) on an engine that does not share keys and on one that does. Expects that the
  // samples agree, and that only the second engine shared keys. Returns its counts.
  template <typename Run>
  Stats ExpectAgreement(HarnessOptions options, const Run& run) {
    options.max_num_batched_tokens = 512;  // whole prompts
    shared_prefix_bytes_ = 0;
    const auto plain = Make(options);
    const Samples want = run(*plain);
    EXPECT_EQ(plain->engine().stats().saved_keys, 0);
    shared_prefix_bytes_ = 1;
    const auto sharing = Make(options);
    const Samples got = run(*sharing);
    EXPECT_EQ(got.size(), want.size());
    for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
      SCOPED_TRACE(i);
      engine::ExpectAgreement(got[i], want[i]);
    }
    sharing->ExpectIdleIsEmpty();
    const Stats stats = sharing->engine().stats();
    EXPECT_GT(stats.shared_prefixes, 0);
    EXPECT_GE(stats.saved_keys, stats.shared_prefixes * 256);
    return stats;
  }

  static Samples RunTogether(EngineHarness& harness, const std::vector<GenerateParams>& all) {
    Samples samples;
    const auto sinks = harness.SubmitTogether(all);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(sinks[i]->WaitFinished());
      for (int32_t k = 0; k < all[i].sampling.n; ++k) samples.push_back(sinks[i]->sample(k));
    }
    return samples;
  }

  // Returns requests whose prompts begin with the same 290 tokens and then differ.
  static std::vector<GenerateParams> WithOnePrefix(int32_t count, int32_t max_tokens) {
    std::vector<GenerateParams> all;
    for (int32_t i = 0; i < count; ++i) {
      TokenIds prompt = RandomIds(290, 7);
      const TokenIds own = RandomIds(3 + 4 * i, 70 + static_cast<uint32_t>(i));
      prompt.insert(prompt.end(), own.begin(), own.end());
      all.push_back(GreedyParams(prompt, max_tokens + i));
    }
    return all;
  }
};

TEST_P(SharedPrefixTest, ForksReadTheirPromptOnce) {
  constexpr int32_t kForks = 16, kTokens = 10;
  GenerateParams params = GreedyParams(RandomIds(300, 4), kTokens);
  params.sampling.n = kForks;
  const Stats stats =
      ExpectAgreement({}, [&](EngineHarness& harness) { return RunTogether(harness, {params}); });
  // The first step is that of the prompt. A step may be planned before the end of a sequence is
  // known.
  EXPECT_GE(stats.shared_prefixes, kTokens - 1);
  EXPECT_LE(stats.shared_prefixes, kTokens);
  EXPECT_EQ(stats.saved_keys, stats.shared_prefixes * (kForks - 1) * 256);
}

TEST_P(SharedPrefixTest, RequestsShareAPrefixThatTheCacheHad) {
  const std::vector<GenerateParams> all = WithOnePrefix(6, 12);
  const Stats stats = ExpectAgreement({}, [&](EngineHarness& harness) {
    harness.Generate(GreedyParams(RandomIds(290, 7), 1));
    return RunTogether(harness, all);
  });
  EXPECT_GE(stats.prompt_tokens_cached, 6 * 288);
}

// A layer with a window has other blocks, and reads its keys for each sequence.
TEST_P(SharedPrefixTest, ALayerBesideAWindowShares) {
  ExpectAgreement(
      {.layer_patterns = {kernels::AttentionPattern::Window(24), {}}, .window_blocks = 200},
      [&](EngineHarness& harness) { return RunTogether(harness, WithOnePrefix(3, 16)); });
}

TEST_P(SharedPrefixTest, PreemptedSequencesShareAgain) {
  const Stats stats = ExpectAgreement({.num_blocks = 34}, [&](EngineHarness& harness) {
    return RunTogether(harness, WithOnePrefix(4, 70));
  });
  EXPECT_GT(stats.preemptions, 0);
}

TEST_P(SharedPrefixTest, TheOtherGoesOnAfterACancel) {
  ExpectAgreement({}, [&](EngineHarness& harness) {
    const auto cancelled = harness.Submit(WithOnePrefix(1, 200)[0]);
    EXPECT_TRUE(cancelled->WaitDeltas(2));
    const auto other = harness.Submit(WithOnePrefix(2, 40)[1]);
    EXPECT_TRUE(other->WaitDeltas(6));
    harness.handles[0]->Cancel();
    EXPECT_TRUE(cancelled->WaitFinished());
    EXPECT_TRUE(other->WaitFinished());
    return Samples{other->sample()};
  });
}

// A shift moves the newest keys to blocks of the sequence's own. The prompt's first blocks stay.
TEST_P(SharedPrefixTest, StreamsThatOutliveTheirCacheWindow) {
  std::vector<GenerateParams> all = WithOnePrefix(3, 30);
  for (GenerateParams& params : all) {
    params.cache.sink_tokens = 260;
    params.cache.window_tokens = 40;
  }
  ExpectAgreement({}, [&](EngineHarness& harness) { return RunTogether(harness, all); });
}

// Four forks fill a recorded step, so a replay has no padding, which would move the cuts.
TEST_P(SharedPrefixTest, ReplaysChangeNothing) {
  shared_prefix_bytes_ = 1;
  GenerateParams params = SampledParams(RandomIds(300, 4), 13, 1000);
  params.sampling.n = 4;
  std::vector<CollectingSink::Sample> want;
  for (const bool records : {false, true}) {
    records_ = records;
    log_ = {};
    const auto harness = Make({.max_num_batched_tokens = 512});
    const auto sink = harness->Submit(params);
    ASSERT_TRUE(sink->WaitFinished());
    for (int32_t k = 0; k < 4; ++k) {
      if (records) {
        ExpectSame(sink->sample(k), want[static_cast<size_t>(k)]);
      } else {
        want.push_back(sink->sample(k));
      }
    }
    EXPECT_GT(harness->engine().stats().shared_prefixes, 10);
    harness->Stop();
    EXPECT_EQ(log_.replays > 10, records);
    EXPECT_GE(NumTensorCoreLaunches(), records ? 0 : 2 * 12);  // both layers
  }
}

TEST_P(SharedPrefixTest, AfterItsWarmUpNoStepRecordsOrAllocates) {
  shared_prefix_bytes_ = 1;
  const auto harness =
      Make({.max_num_seqs = 20, .max_num_batched_tokens = 512, .warms_up_every_size = true});
  log_ = {};
  // Three sequences share a prefix, beside 17 that share a longer one, and beside 17 that share
  // nothing.
  for (const int32_t prompt : {300, 20}) {
    std::vector<GenerateParams> all = WithOnePrefix(3, 16);
    all.push_back(SampledParams(RandomIds(prompt, 9), 10, 5));
    all.back().sampling.n = 17;
    RunTogether(*harness, all);
  }
  EXPECT_GT(harness->engine().stats().shared_prefixes, 40);
  harness->Stop();
  ASSERT_GT(log_.steps.size(), 10);
  EXPECT_GT(log_.replays, 20);
  for (const testing::HostCalls& step : log_.steps) {
    EXPECT_EQ(step.recordings, 0);
    EXPECT_EQ(step.allocations, 0);
    EXPECT_EQ(step.synchronizations, 0);
  }
}

// Runs a request beside six others, and returns its answer.
CollectingSink::Sample AmongOthers(EngineHarness& harness, const GenerateParams& params) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 6; ++i)
    all.push_back(SampledParams(RandomIds(9 + 7 * i, 100 + i), 20, i));
  all.push_back(params);
  const auto sinks = harness.SubmitTogether(all);
  for (const auto& sink : sinks) EXPECT_TRUE(sink->WaitFinished());
  return sinks.back()->sample();
}

TEST_P(CudaEngineTest, AloneAsAmongOthers) {
  const GenerateParams params = SampledParams(RandomIds(37, 1), 12, 42);
  const CollectingSink::Sample alone = Alone(params);
  const auto harness = Make();
  ExpectSame(AmongOthers(*harness, params), alone);
  harness->ExpectIdleIsEmpty();
}

// In bfloat16 the prompt runs on wgmma, in steps with decodes of other requests. The answer agrees
// with that of the other kernel, of which the last bits differ.
TEST_P(CudaEngineTest, PromptsOnWgmmaAloneAsAmongOthers) {
  if (!HasInstruction(testing::MakeDevice()->info(), kernels::cuda::MatrixInstruction::kWgmma)) {
    GTEST_SKIP() << "needs compute capability 9.0";
  }
  const GenerateParams params = GreedyParams(RandomIds(90, 1), 12);
  deterministic_ = false;
  const CollectingSink::Sample on_mma = Alone(params);
  prefill_attention_ = kernels::cuda::MatrixInstruction::kWgmma;
  log_ = {};
  const CollectingSink::Sample alone = Alone(params);
  constexpr int64_t kMoreThanOthers = 70 << 10;
  EXPECT_EQ(std::ranges::count_if(log_.shared_bytes,
                                  [](int64_t bytes) { return bytes > kMoreThanOthers; }) >= 2,
            activations() != DType::kF32);
  ExpectAgreement(alone, on_mma);
  ExpectAgreement(AmongOthers(*Make(), params), alone);
}

// In bfloat16 the first layer runs on tensor cores. The second has longer values than keys and runs
// on the plain kernel. Each step needs a plan for both.
TEST_P(CudaEngineTest, LayersWithOtherHeadsAloneAsAmongOthersAndAfterAHit) {
  const GenerateParams params = SampledParams(RandomIds(37, 1), 12, 42);
  const auto make = [&] { return EngineHarness::TinyUneven(Options()); };
  const CollectingSink::Sample alone = make()->Generate(params);
  EXPECT_EQ(NumTensorCoreLaunches() > 0, HasOneType16());
  const auto harness = make();
  ExpectSame(AmongOthers(*harness, params), alone);
  ExpectSame(harness->Generate(params), alone);
  EXPECT_GT(harness->engine().stats().prompt_tokens_cached, 0);
  EXPECT_GT(harness->engine().stats().block_copies, 0);
  harness->Stop();
  EXPECT_GT(log_.replays, 10);
}

TEST_P(CudaEngineTest, SamplesShareThePromptAndCopyItsTailOnWrite) {
  GenerateParams params = SampledParams(RandomIds(41, 4), 8, 1000);
  params.sampling.n = 3;
  const auto harness = Make();
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  const Stats stats = harness->engine().stats();
  EXPECT_EQ(stats.prompt_tokens_computed, 41);
  EXPECT_GT(stats.block_copies, 0);
  ExpectSamplesAreSingleRequests(*sink, params,
                                 [this](const GenerateParams& one) { return Alone(one); });
}

TEST_P(CudaEngineTest, APrefixIsFoundAgain) {
  const GenerateParams params = GreedyParams(RandomIds(50, 3), 6);
  const auto harness = Make();
  const CollectingSink::Sample cold = harness->Generate(params);
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->summary().usage.cached_tokens, 49);
  ExpectSame(sink->sample(), cold);
}

TEST_P(CudaEngineTest, PreemptionChangesNothing) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 4; ++i) all.push_back(SampledParams(RandomIds(30 + i, 50 + i), 70, i));
  const auto harness = Make({.num_blocks = 14});  // enough for about two requests
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

// The two layers have different attention patterns, so they are in different KV groups, each with
// its own blocks.
TEST_P(CudaEngineTest, LayersWithAWindowAndWithChunksGiveTheSameAmongOthers) {
  HarnessOptions options{.layer_patterns = {kernels::AttentionPattern::Window(24),
                                            kernels::AttentionPattern::Chunk(20)},
                         .window_blocks = 64};
  const GenerateParams params = SampledParams(RandomIds(40, 1), 10, 42);
  const CollectingSink::Sample alone = Make(options)->Generate(params);
  const auto harness = Make(options);
  const auto sinks = harness->SubmitTogether({SampledParams(RandomIds(30, 2), 16, 3), params});
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  ExpectSame(sinks[1]->sample(), alone);
}

// The heads of one layer see different blocks, so its plans list tiles. The lists grow while the
// requests generate, and replays read them.
TEST_P(CudaEngineTest, ReplaysReadTheListsOfTilesOfTheirStep) {
  head_dim_ = 128;  // that of the kernels that read lists
  const std::vector<GenerateParams> all = {SampledParams(RandomIds(110, 2), 30, 3),
                                           SampledParams(RandomIds(170, 1), 30, 42)};
  std::vector<CollectingSink::Sample> want;
  for (const bool records : {false, true}) {
    records_ = records;
    log_ = {};
    const auto harness =
        Make({.layer_patterns = {kernels::AttentionPattern::Blocks(64, 1, 3, 1), {}}});
    const auto sinks = harness->SubmitTogether(all);
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_TRUE(sinks[i]->WaitFinished());
      if (records) {
        ExpectSame(sinks[i]->sample(), want[i]);
      } else {
        want.push_back(sinks[i]->sample());
      }
    }
    EXPECT_EQ(log_.replays > 10, records);
  }
  EXPECT_NE(Alone(all[1]).token_ids, want[1].token_ids);  // without blocks
}

// The cache of this stream keeps the first tokens and the newest tokens. A shift drops the oldest
// tokens between the two, and rotates the keys of the newest tokens to their new positions.
TEST_P(CudaEngineTest, AStreamOutlivesItsCacheWindow) {
  GenerateParams params = GreedyParams(RandomIds(30, 5), 90);
  params.cache.sink_tokens = 4;
  params.cache.window_tokens = 32;
  const auto harness = Make({.num_blocks = 5});  // 80 tokens; the stream has 120
  const CollectingSink::Sample stream = harness->Generate(params);
  EXPECT_EQ(stream.token_ids.size(), 90u);
  ExpectSame(stream, Alone(params));
}

TEST_P(CudaEngineTest, ACancelledRequestLeavesNothing) {
  const auto harness = Make();
  const auto sink = harness->Submit(GreedyParams(RandomIds(20, 1), 400));
  ASSERT_TRUE(sink->WaitDeltas(2));
  harness->handles.back()->Cancel();
  ASSERT_TRUE(sink->WaitFinished());
  harness->ExpectIdleIsEmpty();
}

INSTANTIATE_TEST_SUITE_P(Types, CudaEngineTest,
                         ::testing::Values(Types{DType::kF32, DType::kF32},
                                           Types{DType::kBF16, DType::kBF16},
                                           Types{DType::kF32, DType::kF8E4M3},
                                           Types{DType::kBF16, DType::kF8E4M3}),
                         [](const auto& types) {
                           return absl::StrCat(base::ToAbsl(Name(types.param.activations)),
                                               "_cache_", base::ToAbsl(Name(types.param.cache)));
                         });
INSTANTIATE_TEST_SUITE_P(Types, DividedAttentionTest,
                         ::testing::Values(Types{DType::kBF16, DType::kBF16},
                                           Types{DType::kBF16, DType::kF8E4M3}));
INSTANTIATE_TEST_SUITE_P(Types, SharedPrefixTest,
                         ::testing::Values(Types{DType::kBF16, DType::kBF16},
                                           Types{DType::kBF16, DType::kF8E4M3}));

class CudaTokensTest : public ::testing::TestWithParam<DType> {};

// Float32 activations of the two backends differ in their last bits. Now and then such a difference
// moves an element of an fp8 cache to a neighbouring number, and no draw of this test depends on
// it.
TEST_P(CudaTokensTest, AreTheCpusInFloat32) {
  for (const uint64_t seed : {1, 2}) {
    const GenerateParams params = SampledParams(RandomIds(37, 1), 60, seed);
    HarnessOptions on_cpu{.kv_dtype = GetParam()};
    if (GetParam() == DType::kF8E4M3) on_cpu.cache_scales = {.k = 0.003f, .v = 0.7f};
    HarnessOptions on_cuda = on_cpu;
    on_cuda.make_backend = [] { return *kernels::cuda::CreateCudaBackend(testing::MakeDevice()); };
    EXPECT_EQ(EngineHarness::TinyLlama(on_cuda)->Generate(params).token_ids,
              EngineHarness::TinyLlama(on_cpu)->Generate(params).token_ids);
  }
}

// Here as well, no token depends on the last bits. A product adds up to 80 products, so the last
// bits differ by as many independent roundings.
TEST(CudaAnswersTest, AreTheCpusInFloat32ForEveryKindOfRequest) {
  HarnessOptions options{.max_num_batched_tokens = 256, .kv_dtype = DType::kF32};
  const auto on_cpu = EngineHarness::TinyLlama(options);
  DeviceLog log;
  options.make_backend = [&log] {
    return *kernels::cuda::CreateCudaBackend(std::make_unique<RecordingDevice>(log));
  };
  const auto on_cuda = EngineHarness::TinyLlama(options);
  const auto want = on_cpu->SubmitTogether(RequestsOfEveryKind());
  const auto got = on_cuda->SubmitTogether(RequestsOfEveryKind());
  const double bound = BoundOf(0x1p-24 * std::sqrt(80.0));
  const auto expect_near = [&](const std::vector<PositionLogprobs>& a,
                               const std::vector<PositionLogprobs>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(a[i].chosen.logprob, b[i].chosen.logprob, bound);
    }
  };
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(want[i]->WaitFinished());
    ASSERT_TRUE(got[i]->WaitFinished());
    EXPECT_EQ(got[i]->status(), want[i]->status());
    expect_near(got[i]->prompt_logprobs(), want[i]->prompt_logprobs());
    for (int32_t k = 0; k < 3; ++k) {
      EXPECT_EQ(got[i]->sample(k).token_ids, want[i]->sample(k).token_ids);
      EXPECT_EQ(got[i]->sample(k).text, want[i]->sample(k).text);
      EXPECT_EQ(got[i]->sample(k).finish_reason, want[i]->sample(k).finish_reason);
      expect_near(got[i]->sample(k).logprobs, want[i]->sample(k).logprobs);
    }
  }
  on_cuda->Stop();
  EXPECT_GT(log.replays, 10);
}

// ALiBi and grouped heads on tensor cores, in recorded steps.
TEST(CudaAnswersTest, OfAModelWithAlibiInBfloat16AreTheCpusWithinTheirRoundings) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 5; ++i) {
    all.push_back(GreedyParams(RandomIds(20 + 35 * i, 400 + i), 24));
  }
  HarnessOptions options{.max_num_batched_tokens = 512, .head_dim = 64, .kv_dtype = DType::kF32};
  const auto on_cpu = EngineHarness::TinyAlibi(options);
  options.kv_dtype = DType::kBF16;
  DeviceLog log;
  options.make_backend = [&log] {
    return *kernels::cuda::CreateCudaBackend(std::make_unique<RecordingDevice>(log),
                                             {.activation_dtype = DType::kBF16});
  };
  const auto on_cuda = EngineHarness::TinyAlibi(options);
  const auto want = on_cpu->SubmitTogether(all), got = on_cuda->SubmitTogether(all);
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(want[i]->WaitFinished());
    ASSERT_TRUE(got[i]->WaitFinished());
    ExpectAgreement(got[i]->sample(), want[i]->sample());
  }
  on_cuda->Stop();
  EXPECT_GT(log.replays, 10);
  EXPECT_GT(std::ranges::count_if(log.shared_bytes, [](int64_t bytes) { return bytes > 20 << 10; }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Caches, CudaTokensTest, ::testing::Values(DType::kF32, DType::kF8E4M3));

}  // namespace
}  // namespace quire::engine
