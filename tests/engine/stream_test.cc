// Tests streams that continue past their cache window. A stream gives the same answer alone, in a
// batch, in chunks, and after a cache hit, a fork or a preemption. The answer agrees with a
// computation straight from the definition, and the memory of a stream stays bounded.

#include <algorithm>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/engine/naive_stream.h"
#include "tests/testing/engine_harness.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::ExpectSame;
using testing::ExpectSamplesAreSingleRequests;
using testing::GreedyParams;
using testing::HarnessOptions;
using ::testing::HasSubstr;
using testing::MakeHarness;
using testing::MakeTinyLlama;
using testing::NaiveStream;
using testing::RandomIds;

// With blocks of 16 tokens, a cache window keeps one block of sinks, followed by up to 5 blocks of
// the newest tokens. A shift removes 2 of these 5 blocks.
constexpr int32_t kSinkTokens = 4, kWindowTokens = 70;
const CacheWindow kWindow = CacheWindow::Of(kSinkTokens, kWindowTokens, 16);

GenerateParams StreamParams(TokenIds prompt, int32_t max_tokens, uint64_t seed = 0) {
  GenerateParams params = GreedyParams(std::move(prompt), max_tokens);
  params.cache.sink_tokens = kSinkTokens;
  params.cache.window_tokens = kWindowTokens;
  if (seed > 0) {
    params.sampling.temperature = 0.9f;
    params.sampling.seed = seed;
  }
  return params;
}

class StreamTest : public ::testing::TestWithParam<MakeHarness> {
 protected:
  std::unique_ptr<EngineHarness> Make(const HarnessOptions& options = {}) {
    return GetParam()(options);
  }
  CollectingSink::Sample Alone(const GenerateParams& params) { return Make()->Generate(params); }
};

TEST_P(StreamTest, GoesOnPastTheServedContext) {
  const auto harness = Make({.max_model_len = 128});
  const auto sink = harness->Submit(StreamParams(RandomIds(20, 1), 1000));
  ASSERT_TRUE(sink->WaitFinished());
  ASSERT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->sample().token_ids.size(), 1000);
  EXPECT_EQ(sink->sample().finish_reason, FinishReason::kLength);
}

TEST_P(StreamTest, UpToItsFirstShiftItIsLikeAnyOther) {
  const TokenIds prompt = RandomIds(20, 1);
  // The first `whole` generated tokens depend on the whole context. The last of these tokens is
  // drawn when the cache has just become full.
  const auto whole = static_cast<size_t>(kWindow.capacity()) - 20 + 1;
  const CollectingSink::Sample stream = Alone(StreamParams(prompt, 300));
  const CollectingSink::Sample other = Alone(GreedyParams(prompt, 300));
  const auto [a, b] = std::ranges::mismatch(stream.token_ids, other.token_ids);
  EXPECT_GE(a - stream.token_ids.begin(), static_cast<int64_t>(whole));
  EXPECT_NE(stream.token_ids, other.token_ids);
}

TEST_P(StreamTest, AloneAsAmongOthers) {
  const GenerateParams params = StreamParams(RandomIds(37, 1), 300, 42);
  const CollectingSink::Sample alone = Alone(params);
  ASSERT_EQ(alone.token_ids.size(), 300);
  const auto harness = Make();
  std::vector<std::shared_ptr<CollectingSink>> others;
  for (uint32_t i = 0; i < 8; ++i) {
    const TokenIds prompt = RandomIds(20 + 40 * i, 100 + i);
    others.push_back(
        harness->Submit(i % 2 == 0 ? StreamParams(prompt, 300, i + 1) : GreedyParams(prompt, 100)));
  }
  ASSERT_TRUE(others.front()->WaitDeltas(3));
  ExpectSame(harness->Generate(params), alone);
  for (const auto& other : others) ASSERT_TRUE(other->WaitFinished());
  EXPECT_LT(harness->engine().stats().steps, 8 * 300 / 3) << "they did not run together";
}

TEST_P(StreamTest, InChunksOfAnySizeAndTokenByToken) {
  const TokenIds prompt = RandomIds(331, 2);
  const GenerateParams params = StreamParams(prompt, 40);
  const CollectingSink::Sample whole = Make({.max_num_batched_tokens = 512})->Generate(params);
  for (const int32_t chunk : {1, 7, 64}) {
    SCOPED_TRACE(chunk);
    const auto harness =
        Make({.max_num_seqs = std::min(chunk, 4), .max_num_batched_tokens = chunk});
    ExpectSame(harness->Generate(params), whole);
  }
  // This prompt ends with the first 30 tokens that the model generated.
  TokenIds longer = prompt;
  longer.insert(longer.end(), whole.token_ids.begin(), whole.token_ids.begin() + 30);
  const CollectingSink::Sample rest = Alone(StreamParams(longer, 10));
  EXPECT_TRUE(std::ranges::equal(rest.token_ids, std::span(whole.token_ids).subspan(30)));
}

TEST_P(StreamTest, AfterPreemption) {
  std::vector<GenerateParams> all;
  std::vector<CollectingSink::Sample> alone;
  // The younger request has the longer prompt, so it shifts first. The first shift of the older
  // request comes long after that, and preempts the younger request.
  for (uint32_t i = 0; i < 2; ++i) {
    all.push_back(StreamParams(RandomIds(30 + 60 * i, 50 + i), 250, i + 1));
    alone.push_back(Alone(all.back()));
  }
  // 13 blocks hold both requests, but have no room for the copies that a first shift makes.
  const auto harness = Make({.num_blocks = 13});
  const auto sinks = harness->SubmitTogether(all);
  int64_t recomputed = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(sinks[i]->WaitFinished());
    ExpectSame(sinks[i]->sample(), alone[i]);
    recomputed = std::max(recomputed, sinks[i]->summary().usage.recomputed_tokens);
  }
  const Stats stats = harness->engine().stats();
  EXPECT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
  EXPECT_GT(recomputed, kWindow.capacity()) << "none had to go behind a shift";
}

TEST_P(StreamTest, SharesItsBeginningAndLeavesItAsItWas) {
  const TokenIds prompt = RandomIds(90, 3);
  const CollectingSink::Sample plain = Alone(GreedyParams(prompt, 30));
  const CollectingSink::Sample stream = Alone(StreamParams(prompt, 200));
  const auto harness = Make();
  ExpectSame(harness->Generate(GreedyParams(prompt, 30)), plain);
  // This stream starts from the cached blocks of the first request. The shifts of the stream must
  // not change these blocks.
  const auto sharing = harness->Submit(StreamParams(prompt, 200));
  ASSERT_TRUE(sharing->WaitDeltas(100));
  const auto during = harness->Submit(GreedyParams(prompt, 30));
  ASSERT_TRUE(during->WaitFinished());
  ASSERT_TRUE(sharing->WaitFinished());
  ExpectSame(during->sample(), plain);
  ExpectSame(sharing->sample(), stream);
  EXPECT_EQ(sharing->summary().usage.cached_tokens, 89);
  EXPECT_EQ(during->summary().usage.cached_tokens, 89);
  const auto after = harness->Submit(GreedyParams(prompt, 30));
  ASSERT_TRUE(after->WaitFinished());
  ExpectSame(after->sample(), plain);
  EXPECT_EQ(after->summary().usage.cached_tokens, 89);
}

TEST_P(StreamTest, SampleKOfNIsTheSingleStreamWithSeedPlusK) {
  for (const int64_t prompt_len : {41, 200}) {  // forked before and after the first shift
    GenerateParams params = StreamParams(RandomIds(prompt_len, 4), 160, 1000);
    params.sampling.n = 3;
    const auto harness = Make();
    const auto sink = harness->Submit(params);
    ASSERT_TRUE(sink->WaitFinished());
    ExpectSamplesAreSingleRequests(*sink, params,
                                   [this](const GenerateParams& one) { return Alone(one); });
  }
}

TEST_P(StreamTest, CancelFreesItsBlocks) {
  const auto harness = Make();
  GenerateParams params = StreamParams(RandomIds(20, 5), 1);
  params.stop.max_tokens.reset();  // without end
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitDeltas(300));
  harness->handles[0]->Cancel();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kCancelled);
  harness->ExpectIdleIsEmpty();
}

std::string ModelName(const ::testing::TestParamInfo<MakeHarness>& param) {
  constexpr const char* kNames[] = {"Fake", "TinyLlama", "TinyAlibi", "TinyUneven"};
  return kNames[param.index];
}
INSTANTIATE_TEST_SUITE_P(Models, StreamTest,
                         ::testing::Values(&EngineHarness::Fake, &EngineHarness::TinyLlama,
                                           &EngineHarness::TinyAlibi, &EngineHarness::TinyUneven),
                         ModelName);

TEST(StreamMemoryTest, HoldsNoMoreThanItsWindowHoweverLongItGoesOn) {
  const auto harness = EngineHarness::Fake();
  int64_t most_held = 0;
  harness->fake()->before_forward = [&] {
    most_held = std::max(most_held, harness->engine().stats().blocks_held);
  };
  TokenIds tokens = RandomIds(20, 1);
  const auto total = static_cast<int32_t>(25 * kWindow.capacity());
  const CollectingSink::Sample sample = harness->Generate(StreamParams(tokens, total));
  // Each token depends on the sinks and on the rest of the window, and on nothing else.
  for (const int32_t id : sample.token_ids) {
    const int64_t last = static_cast<int64_t>(tokens.size()) - 1;
    TokenIds visible(tokens.begin(), tokens.begin() + std::min<int64_t>(last + 1, kWindow.sinks));
    const int64_t left = kWindow.sinks + kWindow.NumShifts(last) * kWindow.drop;
    visible.insert(visible.end(), tokens.begin() + std::min(last + 1, left), tokens.end());
    ASSERT_EQ(id, harness->fake()->NextToken(visible)) << tokens.size();
    tokens.push_back(id);
  }
  EXPECT_GT(most_held, kWindow.capacity() / 16) << "the first shift copies what the cache lists";
  EXPECT_LE(most_held, kWindow.MostHeld() / 16);
}

TEST(StreamMemoryTest, RunsInTheSmallestCacheThatItIsAdmittedTo) {
  const int64_t num_blocks = kWindow.MostHeld() / 16;
  const auto harness = EngineHarness::TinyLlama({.num_blocks = num_blocks});
  const CollectingSink::Sample sample = harness->Generate(StreamParams(RandomIds(150, 1), 200));
  EXPECT_EQ(sample.token_ids.size(), 200);
  const auto smaller = EngineHarness::TinyLlama({.num_blocks = num_blocks - 1});
  const auto sink = smaller->Submit(StreamParams(RandomIds(150, 1), 200));
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_THAT(std::string(sink->status().message()),
              HasSubstr("to fit the KV cache of 160 tokens, got (16 + 2 x 80) x 1"));
}

TEST(StreamReferenceTest, AgreesWithACacheThatIsAListOfTokens) {
  const testing::InMemoryWeights weights = MakeTinyLlama(EngineHarness::kTinyShape);
  const TokenIds prompt = RandomIds(400, 7);
  for (const bool alibi : {false, true}) {
    for (const int32_t sink_tokens : {0, 20}) {
      SCOPED_TRACE(alibi ? "ALiBi" : "RoPE");
      GenerateParams params = StreamParams(prompt, 1);
      params.cache.sink_tokens = sink_tokens;
      params.output.prompt_logprobs = 0;
      const HarnessOptions options{.kv_dtype = kernels::DType::kF32};
      const auto harness =
          alibi ? EngineHarness::TinyAlibi(options) : EngineHarness::TinyLlama(options);
      const auto sink = harness->Submit(params);
      ASSERT_TRUE(sink->WaitFinished());
      const std::vector<PositionLogprobs> got = sink->prompt_logprobs();
      ASSERT_EQ(got.size(), 399);

      const CacheWindow window = CacheWindow::Of(sink_tokens, kWindowTokens, 16);
      NaiveStream naive(
          EngineHarness::kTinyShape, weights,
          {.sinks = window.sinks, .window = window.window, .drop = window.drop, .alibi = alibi});
      double largest = 0.0;
      for (size_t i = 0; i + 1 < prompt.size(); ++i) {
        const double want = naive.Push(prompt[i])[prompt[i + 1]];
        largest = std::max(largest, std::abs(got[i].chosen.logprob - want));
      }
      // decoder_test bounds the error of a logit of such models by about 3e-4. A log-probability
      // subtracts a log-sum-exp with the same bound. A key is rounded up to five times here, not
      // once.
      EXPECT_LT(largest, 1e-3);
      RecordProperty("largest_error", std::to_string(largest));
    }
  }
}

TEST(StreamRefusalTest, SaysWhatAWindowMustBe) {
  const auto harness = EngineHarness::Fake({.num_blocks = 40, .max_model_len = 128});
  const auto refused = [&](auto change) {
    GenerateParams params = StreamParams(RandomIds(20, 1), 10);
    change(params);
    const auto sink = harness->Submit(params);
    EXPECT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sink->status().message());
  };
  EXPECT_THAT(refused([](auto& p) { p.cache.window_tokens = 16; }),
              HasSubstr("cache.window_tokens: want more than a block of 16 tokens, got 16"));
  EXPECT_THAT(refused([](auto& p) { p.cache.window_tokens = 113; }),
              HasSubstr("to be at most max_model_len (128), got 16 + 128"));
  EXPECT_THAT(refused([](auto& p) { p.sampling.n = 4; }),
              HasSubstr("to fit the KV cache of 640 tokens, got (16 + 2 x 80) x 4"));
  EXPECT_THAT(
      refused([](auto& p) { p.stop.max_tokens = p.stop.min_tokens = 1 << 24; }),
      HasSubstr("stop.min_tokens: want at most 16777196 tokens (a stream's limit 16777216"));
  const auto sliding = EngineHarness::Fake(
      {.layer_patterns = {{}, kernels::AttentionPattern::Window(64)}, .window_blocks = 512});
  const auto sink = sliding->Submit(StreamParams(RandomIds(20, 1), 10));
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(
      std::string(sink->status().message()),
      "cache.window_tokens: want 0, since some layers of the model see only a part of the context");
}

}  // namespace
}  // namespace quire::engine
