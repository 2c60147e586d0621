// Tests that the tokens and logits of a request do not depend on batches, chunks, cache hits, forks
// or preemption. Each test checks by counters that the path under test ran.

#include <cstring>

#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::ExpectSame;
using testing::ExpectSamplesAreSingleRequests;
using testing::GreedyParams;
using testing::HarnessOptions;
using testing::MakeHarness;
using testing::RandomIds;

class EqualityTest : public ::testing::TestWithParam<MakeHarness> {
 protected:
  std::unique_ptr<EngineHarness> Make(const HarnessOptions& options = {}) {
    return GetParam()(options);
  }
  CollectingSink::Sample Alone(const GenerateParams& params) { return Make()->Generate(params); }
};

GenerateParams SampledParams(TokenIds prompt, int32_t max_tokens, uint64_t seed) {
  GenerateParams params = GreedyParams(std::move(prompt), max_tokens);
  params.sampling.temperature = 0.9f;
  params.sampling.top_k = 40;
  params.sampling.top_p = 0.95f;
  params.sampling.repetition_penalty = 1.1f;
  params.sampling.seed = seed;
  return params;
}

TEST_P(EqualityTest, AloneAsAmongThirtyOneOthers) {
  const GenerateParams params = SampledParams(RandomIds(37, 1), 40, 42);
  const CollectingSink::Sample alone = Alone(params);
  ASSERT_EQ(alone.token_ids.size(), 40);

  const auto harness = Make();
  std::vector<std::shared_ptr<CollectingSink>> others;
  for (uint32_t i = 0; i < 31; ++i) {
    others.push_back(harness->Submit(SampledParams(RandomIds(20 + 5 * i, 100 + i), 60, i)));
  }
  ASSERT_TRUE(others.front()->WaitDeltas(3));
  ExpectSame(harness->Generate(params), alone);
  for (const auto& other : others) ASSERT_TRUE(other->WaitFinished());
  // The requests generated 31 * 60 + 40 tokens. Far fewer steps prove that they ran together.
  EXPECT_LT(harness->engine().stats().steps, 31 * 60 / 4);
}

TEST_P(EqualityTest, InChunksOfAnySize) {
  const GenerateParams params = GreedyParams(RandomIds(131, 2), 20);
  const CollectingSink::Sample whole = Make({.max_num_batched_tokens = 256})->Generate(params);
  for (const int32_t chunk : {1, 7, 64}) {
    const auto harness =
        Make({.max_num_seqs = std::min(chunk, 4), .max_num_batched_tokens = chunk});
    ExpectSame(harness->Generate(params), whole);
    EXPECT_EQ(harness->engine().stats().steps, (131 + chunk - 1) / chunk + 19)
        << "chunks of " << chunk;
  }
}

TEST_P(EqualityTest, AfterAHitToAnyToken) {
  const TokenIds prompt = RandomIds(50, 3);
  const GenerateParams params = GreedyParams(prompt, 12);
  const CollectingSink::Sample cold = Alone(params);
  for (int64_t cut = 1; cut <= 50; ++cut) {
    SCOPED_TRACE(cut);
    const auto harness = Make();
    // `other` shares exactly its first `cut` tokens with the prompt.
    TokenIds other(prompt.begin(), prompt.begin() + cut);
    if (cut < 50) other.push_back((prompt[cut] + 1) % 256);
    harness->Generate(GreedyParams(other, 1));
    const Stats before = harness->engine().stats();

    const auto sink = harness->Submit(params);
    ASSERT_TRUE(sink->WaitFinished());
    ExpectSame(sink->sample(), cold);
    const int64_t cached = sink->summary().usage.cached_tokens;
    EXPECT_EQ(cached, std::min<int64_t>(cut, 49));
    const Stats after = harness->engine().stats();
    EXPECT_EQ(after.prompt_tokens_computed - before.prompt_tokens_computed, 50 - cached);
    EXPECT_EQ(after.prompt_tokens_cached - before.prompt_tokens_cached, cached);
    if (cut % 16 != 0) {
      EXPECT_GT(after.block_copies, before.block_copies);
    }
  }
}

TEST_P(EqualityTest, WithAPrefixThatIsReadOnceForAll) {
  const HarnessOptions options{.max_num_batched_tokens = 256, .max_model_len = 1024};
  const TokenIds prefix = RandomIds(600, 3);
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 12; ++i) {
    TokenIds prompt = prefix;
    // Half of them have 100 tokens more in common.
    for (const int32_t id : RandomIds(100, i < 6 ? 4 : 5 + i)) prompt.push_back(id);
    for (const int32_t id : RandomIds(static_cast<int64_t>(i), 50 + i)) prompt.push_back(id);
    all.push_back(SampledParams(std::move(prompt), 12, i));
  }
  const auto harness = Make(options);
  const auto together = harness->SubmitTogether(all);
  for (const auto& sink : together) ASSERT_TRUE(sink->WaitFinished());
  const Stats stats = harness->engine().stats();
  EXPECT_GE(stats.saved_keys, 10 * 11 * 512) << "in ten steps at least they ran together";
  EXPECT_EQ(stats.preemptions, 0);
  for (size_t i = 0; i < all.size(); i += 5) {
    ExpectSame(together[i]->sample(0), Make(options)->Generate(all[i]));
  }
}

TEST_P(EqualityTest, BypassReadComputesEverythingAgain) {
  GenerateParams params = GreedyParams(RandomIds(50, 3), 12);
  const auto harness = Make();
  const CollectingSink::Sample first = harness->Generate(params);
  params.cache.bypass_read = true;
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  ExpectSame(sink->sample(), first);
  EXPECT_EQ(sink->summary().usage.cached_tokens, 0);
}

TEST_P(EqualityTest, SaltAndTenantSeparateTheCache) {
  GenerateParams params = GreedyParams(RandomIds(50, 3), 4);
  const auto harness = Make();
  const CollectingSink::Sample first = harness->Generate(params);
  for (const bool tenant : {false, true}) {
    GenerateParams other = params;
    (tenant ? other.sched.tenant : other.cache.salt) = "another";
    const auto sink = harness->Submit(other);
    ASSERT_TRUE(sink->WaitFinished());
    ExpectSame(sink->sample(), first);
    EXPECT_EQ(sink->summary().usage.cached_tokens, 0);
    const auto again = harness->Submit(other);
    ASSERT_TRUE(again->WaitFinished());
    EXPECT_EQ(again->summary().usage.cached_tokens, 49);
  }
}

TEST_P(EqualityTest, AfterPreemption) {
  // Runs eight sequences of up to 37 + 90 tokens. The cache has room for about two of them.
  std::vector<GenerateParams> all;
  std::vector<CollectingSink::Sample> alone;
  for (uint32_t i = 0; i < 8; ++i) {
    all.push_back(SampledParams(RandomIds(30 + i, 50 + i), 90, i));
    alone.push_back(Alone(all.back()));
  }
  const auto harness = Make({.num_blocks = 18});
  const auto sinks = harness->SubmitTogether(all);
  int64_t recomputed = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(sinks[i]->WaitFinished());
    ExpectSame(sinks[i]->sample(), alone[i]);
    recomputed += sinks[i]->summary().usage.recomputed_tokens;
  }
  const Stats stats = harness->engine().stats();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_GT(recomputed, 0);
  EXPECT_EQ(recomputed, stats.recomputed_tokens);
  EXPECT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
}

TEST_P(EqualityTest, SampleKOfNIsTheSingleRequestWithSeedPlusK) {
  GenerateParams params = SampledParams(RandomIds(41, 4), 24, 1000);
  params.sampling.n = 5;
  const auto harness = Make();
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  const Stats stats = harness->engine().stats();
  EXPECT_EQ(stats.prompt_tokens_computed, 41);  // once for all five
  EXPECT_GT(stats.block_copies, 0);             // the shared tail was copied on write
  EXPECT_EQ(sink->summary().usage.completion_tokens, 5 * 24);
  ExpectSamplesAreSingleRequests(*sink, params,
                                 [this](const GenerateParams& one) { return Alone(one); });
}

TEST_P(EqualityTest, SamplesAlsoSurvivePreemption) {
  GenerateParams params = SampledParams(RandomIds(41, 4), 60, 7);
  params.sampling.n = 3;
  const auto roomy = Make();
  const auto calm = roomy->Submit(params);
  ASSERT_TRUE(calm->WaitFinished());
  const auto harness = Make({.num_blocks = 18});
  const auto sinks = harness->SubmitTogether({SampledParams(RandomIds(90, 5), 100, 3), params});
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  for (int32_t k = 0; k < 3; ++k) ExpectSame(sinks[1]->sample(k), calm->sample(k));
  // The older request is never preempted, so only samples of `params` are preempted.
  const Usage usage = sinks[1]->summary().usage;
  const Stats stats = harness->engine().stats();
  EXPECT_GE(usage.num_preemptions, 2);
  EXPECT_EQ(usage.num_preemptions, stats.preemptions);
  EXPECT_EQ(usage.recomputed_tokens, stats.recomputed_tokens);
}

TEST_P(EqualityTest, PromptLogprobsComeInChunksAndAreThoseOfDecoding) {
  const TokenIds prompt = RandomIds(150, 6);
  GenerateParams params = GreedyParams(prompt, 2);
  params.output.prompt_logprobs = 5;
  const auto harness = Make({.max_num_batched_tokens = 256});
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  const std::vector<PositionLogprobs> got = sink->prompt_logprobs();
  ASSERT_EQ(got.size(), 149);
  EXPECT_GT(sink->num_prompt_chunks(), 1);
  EXPECT_EQ(sink->summary().usage.cached_tokens, 0);
  // The distribution for position p of this prompt must equal the distribution of the first
  // generated token after a prompt of only tokens 0 to p - 1.
  for (const int64_t p : {1, 16, 63, 64, 65, 149}) {
    const CollectingSink::Sample next =
        Alone(GreedyParams(TokenIds(prompt.begin(), prompt.begin() + p), 1));
    EXPECT_EQ(got[p - 1].chosen.token_id, prompt[p]);
    EXPECT_GE(got[p - 1].rank, 1);
    EXPECT_EQ(next.logprobs[0].rank, 1) << "greedy";
    ASSERT_EQ(got[p - 1].top.size(), 5);
    EXPECT_EQ(
        std::memcmp(got[p - 1].top.data(), next.logprobs[0].top.data(), 5 * sizeof(TokenLogprob)),
        0)
        << "position " << p;
  }
}

TEST_P(EqualityTest, PromptLogprobsOfAPreemptedPromptComeOnce) {
  GenerateParams params = GreedyParams(RandomIds(120, 7), 2);
  params.output.prompt_logprobs = 1;
  const auto roomy = Make();
  const auto calm = roomy->Submit(params);
  ASSERT_TRUE(calm->WaitFinished());
  // The cache has 18 blocks. The second request holds 8 of them for its prompt. The older request
  // starts with 7 blocks, and preempts the second request when no block is free. By then, only a
  // part of the second prompt is computed, because a step computes two tokens in all.
  const auto harness = Make({.num_blocks = 18, .max_num_seqs = 2, .max_num_batched_tokens = 2});
  const auto sinks = harness->SubmitTogether({GreedyParams(RandomIds(100, 8), 150), params});
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sinks[1]->summary().usage.num_preemptions, 1);
  EXPECT_GT(sinks[1]->summary().usage.recomputed_tokens, 0);
  const std::vector<PositionLogprobs> want = calm->prompt_logprobs();
  const std::vector<PositionLogprobs> got = sinks[1]->prompt_logprobs();
  ASSERT_EQ(want.size(), 119u);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(std::memcmp(&got[i].chosen, &want[i].chosen, sizeof(TokenLogprob)), 0) << i;
    EXPECT_EQ(got[i].rank, want[i].rank) << i;
  }
}

// Returns `options` with a window in one layer. The window is far shorter than the contexts of
// these tests, and it adds a KV group.
HarnessOptions WithWindow(HarnessOptions options) {
  options.layer_patterns = {kernels::AttentionPattern::Window(24), {}};
  options.window_blocks = 512;
  return options;
}

// Returns `options` with one layer whose queries see only their own chunk.
HarnessOptions WithChunks(HarnessOptions options) {
  options.layer_patterns = {kernels::AttentionPattern::Chunk(24), {}};
  options.window_blocks = 512;
  return options;
}

std::unique_ptr<EngineHarness> WindowedFake(const HarnessOptions& options) {
  return EngineHarness::Fake(WithWindow(options));
}

std::unique_ptr<EngineHarness> WindowedTinyLlama(const HarnessOptions& options) {
  return EngineHarness::TinyLlama(WithWindow(options));
}

std::unique_ptr<EngineHarness> ChunkedTinyLlama(const HarnessOptions& options) {
  return EngineHarness::TinyLlama(WithChunks(options));
}

std::unique_ptr<EngineHarness> WindowedTinyUneven(const HarnessOptions& options) {
  return EngineHarness::TinyUneven(WithWindow(options));
}

std::unique_ptr<EngineHarness> Fp8TinyLlama(const HarnessOptions& options) {
  HarnessOptions fp8 = options;
  fp8.kv_dtype = kernels::DType::kF8E4M3;
  return EngineHarness::TinyLlama(fp8);
}

// The heads of one layer see different blocks, and the contexts of these tests have up to four.
std::unique_ptr<EngineHarness> SparseTinyLlama(const HarnessOptions& options) {
  HarnessOptions sparse = options;
  sparse.layer_patterns = {kernels::AttentionPattern::Blocks(64, 1, 3, 1), {}};
  return EngineHarness::TinyLlama(sparse);
}

std::string ModelName(const ::testing::TestParamInfo<MakeHarness>& param) {
  constexpr const char* kNames[] = {"Fake",
                                    "TinyLlama",
                                    "WindowedFake",
                                    "WindowedTinyLlama",
                                    "ChunkedTinyLlama",
                                    "TinyUneven",
                                    "WindowedTinyUneven",
                                    "SparseTinyLlama",
                                    "Fp8TinyLlama"};
  return kNames[param.index];
}

INSTANTIATE_TEST_SUITE_P(Models, EqualityTest,
                         ::testing::Values(&EngineHarness::Fake, &EngineHarness::TinyLlama,
                                           &WindowedFake, &WindowedTinyLlama, &ChunkedTinyLlama,
                                           &EngineHarness::TinyUneven, &WindowedTinyUneven,
                                           &SparseTinyLlama, &Fp8TinyLlama),
                         ModelName);

class WindowTest : public ::testing::TestWithParam<kernels::AttentionPattern> {};

// Both layers have the tested pattern. Each of the six contexts fills 23 blocks. The engine that
// runs all six requests has only 16 window blocks, which are enough for two sequences.
TEST_P(WindowTest, ContextsFarLongerThanItsMemoryGiveTheSame) {
  HarnessOptions options{.layer_patterns = {GetParam(), GetParam()}, .window_blocks = 512};
  std::vector<GenerateParams> all;
  std::vector<CollectingSink::Sample> alone;
  for (uint32_t i = 0; i < 6; ++i) {
    all.push_back(SampledParams(RandomIds(60 + i, 70 + i), 300, i));
    alone.push_back(EngineHarness::TinyLlama(options)->Generate(all.back()));
  }
  options.window_blocks = 16;
  const auto harness = EngineHarness::TinyLlama(options);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const GenerateParams& params : all) sinks.push_back(harness->Submit(params));
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(sinks[i]->WaitFinished());
    ExpectSame(sinks[i]->sample(), alone[i]);
  }
  EXPECT_GE(harness->engine().stats().steps, 6 * 300 / 2);  // at most two run at once
}

INSTANTIATE_TEST_SUITE_P(Patterns, WindowTest,
                         ::testing::Values(kernels::AttentionPattern::Window(24),
                                           kernels::AttentionPattern::Chunk(24)));

}  // namespace
}  // namespace quire::engine
