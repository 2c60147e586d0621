// Tests the scoring of several continuations of one prompt. The log-probabilities are those of the
// whole text, the prompt is computed once, and the engine keeps nothing afterwards.

#include <chrono>
#include <cstring>
#include <future>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::GreedyParams;
using testing::HarnessOptions;
using testing::MakeHarness;
using testing::RandomIds;

GenerateParams ScoreParams(const TokenIds& prompt, const std::vector<TokenIds>& continuations) {
  GenerateParams params;
  params.prompt = prompt;
  for (const TokenIds& ids : continuations) params.continuations.emplace_back(ids);
  params.output.token_ids = true;
  params.output.logprob_text = true;
  return params;
}

// Returns continuations of 1, 2, 3, 20 and 90 tokens. The shortest does not fill a block, and the
// longest does not fit into one step.
std::vector<TokenIds> Continuations(uint32_t seed) {
  std::vector<TokenIds> all;
  for (const int64_t size : {1, 2, 3, 20, 90}) all.push_back(RandomIds(size, seed + size));
  return all;
}

class ScoreTest : public ::testing::TestWithParam<MakeHarness> {
 protected:
  std::unique_ptr<EngineHarness> Make(const HarnessOptions& options = {}) {
    return GetParam()(options);
  }

  // Runs a request whose prompt is `prompt` followed by `continuation`. Returns the
  // log-probabilities of the tokens of `continuation`.
  std::vector<PositionLogprobs> Reference(TokenIds prompt, const TokenIds& continuation) {
    prompt.insert(prompt.end(), continuation.begin(), continuation.end());
    GenerateParams params = GreedyParams(prompt, 1);
    params.output.prompt_logprobs = 1;
    const auto harness = Make({.max_num_batched_tokens = 256});
    const auto sink = harness->Submit(params);
    EXPECT_TRUE(sink->WaitFinished());
    const std::vector<PositionLogprobs> all = sink->prompt_logprobs();
    return {all.end() - std::ssize(continuation), all.end()};
  }

  // Expects that the log-probabilities in `sink` equal those of Reference bit for bit.
  void ExpectReference(const CollectingSink& sink, const TokenIds& prompt,
                       const std::vector<TokenIds>& continuations) {
    ASSERT_TRUE(sink.status().ok()) << sink.status();
    for (size_t k = 0; k < continuations.size(); ++k) {
      SCOPED_TRACE(k);
      const CollectingSink::Sample got = sink.sample(static_cast<int32_t>(k));
      EXPECT_EQ(got.token_ids, continuations[k]);
      EXPECT_EQ(got.finish_reason, FinishReason::kLength);
      const std::vector<PositionLogprobs> want = Reference(prompt, continuations[k]);
      ASSERT_EQ(got.logprobs.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(std::memcmp(&got.logprobs[i].chosen, &want[i].chosen, sizeof(want[i].chosen)), 0);
        EXPECT_EQ(got.logprobs[i].rank, want[i].rank);
        ASSERT_EQ(got.logprobs[i].top.size(), 1u);
        EXPECT_EQ(std::memcmp(got.logprobs[i].top.data(), want[i].top.data(), sizeof(TokenLogprob)),
                  0);
      }
    }
  }
};

TEST_P(ScoreTest, SaysWhatTheWholeTextSaysAndComputesThePromptOnce) {
  const TokenIds prompt = RandomIds(37, 1);  // the last block is not full
  const std::vector<TokenIds> continuations = Continuations(7);
  const auto harness = Make();
  const auto sink = harness->Submit(ScoreParams(prompt, continuations));
  ASSERT_TRUE(sink->WaitFinished());
  ExpectReference(*sink, prompt, continuations);
  EXPECT_EQ(sink->summary().usage.prompt_tokens, 37);
  EXPECT_EQ(sink->summary().usage.completion_tokens, 1 + 2 + 3 + 20 + 90);
  const Stats stats = harness->engine().stats();
  EXPECT_EQ(stats.prompt_tokens_computed, 37);
  EXPECT_EQ(stats.scored_tokens, 1 + 2 + 3 + 20 + 90);
  EXPECT_EQ(stats.generated_tokens, 0);
  EXPECT_GT(stats.block_copies, 0) << "the prompt's last block was shared, and copied on write";
  EXPECT_EQ(stats.blocks_held, 0);
}

TEST_P(ScoreTest, TheSameFromTheCacheAndInStepsOfAnySize) {
  const TokenIds prompt = RandomIds(50, 2);
  const std::vector<TokenIds> continuations = Continuations(9);
  for (const int32_t step : {5, 64}) {
    const auto harness = Make({.max_num_seqs = 5, .max_num_batched_tokens = step});
    for (const int64_t cached : {0, 49}) {
      const auto sink = harness->Submit(ScoreParams(prompt, continuations));
      ASSERT_TRUE(sink->WaitFinished());
      EXPECT_EQ(sink->summary().usage.cached_tokens, cached);
      ExpectReference(*sink, prompt, continuations);
    }
    EXPECT_EQ(harness->engine().stats().prompt_tokens_computed, 50 + 1);
  }
}

TEST_P(ScoreTest, TheSameAmongOthersOnACacheTooSmallForAll) {
  const TokenIds prompt = RandomIds(37, 3);
  const std::vector<TokenIds> continuations = {RandomIds(60, 4), RandomIds(61, 5),
                                               RandomIds(62, 6)};
  const auto harness = Make({.num_blocks = 22});
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 4; ++i) all.push_back(GreedyParams(RandomIds(30, 50 + i), 90));
  for (int i = 0; i < 2; ++i) all.push_back(ScoreParams(prompt, continuations));
  const auto sinks = harness->SubmitTogether(all);
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  int64_t preemptions = 0;
  for (size_t i = 4; i < all.size(); ++i) {
    preemptions += sinks[i]->summary().usage.num_preemptions;
    ExpectReference(*sinks[i], prompt, continuations);
  }
  EXPECT_GT(preemptions, 0);
  const Stats stats = harness->engine().stats();
  EXPECT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
}

TEST_P(ScoreTest, WhatGreedyDecodingTookIsTheLikeliest) {
  const TokenIds prompt = RandomIds(20, 4);
  const auto harness = Make();
  const TokenIds greedy = harness->Generate(GreedyParams(prompt, 12)).token_ids;
  TokenIds other = greedy;
  other[5] = (other[5] + 1) % 256;
  const auto sink = harness->Submit(ScoreParams(prompt, {greedy, other}));
  ASSERT_TRUE(sink->WaitFinished());
  for (const PositionLogprobs& position : sink->sample(0).logprobs) {
    EXPECT_EQ(position.chosen.token_id, position.top[0].token_id);
  }
  const PositionLogprobs parted = sink->sample(1).logprobs[5];
  EXPECT_EQ(parted.top[0].token_id, greedy[5]);
  EXPECT_LT(parted.chosen.logprob, parted.top[0].logprob);
}

TEST(ScoreEndTest, CancelAndDeadlineFreeEverything) {
  for (const bool cancel : {true, false}) {
    std::promise<void> reached, cancelled;
    const auto harness = EngineHarness::Fake({.max_num_seqs = 1, .max_num_batched_tokens = 1});
    // The 25th of about 500 steps lasts until the request is cancelled or past its deadline.
    harness->fake()->before_forward = [&, step = 0]() mutable {
      if (++step != 25) return;
      reached.set_value();
      cancelled.get_future().wait_for(std::chrono::milliseconds(cancel ? 10000 : 100));
    };
    GenerateParams params = ScoreParams(RandomIds(20, 5), {RandomIds(480, 6)});
    if (!cancel) params.deadline = absl::Now() + absl::Milliseconds(50);
    const auto sink = harness->Submit(params);
    if (cancel) {
      ASSERT_EQ(reached.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
      harness->handles[0]->Cancel();
      cancelled.set_value();
    }
    ASSERT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(),
              cancel ? absl::StatusCode::kCancelled : absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(sink->num_after_finish(), 0);
    const Stats stats = harness->engine().stats();
    EXPECT_LT(stats.steps, 499) << "one for each token but the last, were it not cut short";
    EXPECT_EQ(stats.blocks_held, 0);
    EXPECT_EQ(stats.num_running, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ScoreTest,
                         ::testing::Values(&EngineHarness::Fake, &EngineHarness::TinyLlama),
                         [](const auto& param) { return param.index == 0 ? "Fake" : "TinyLlama"; });

// The engine looks up the scores of a request by the request's address. The next request may get
// the same address.
TEST(ScoreCancelTest, ACancelledRequestLeavesNothingToThoseAfterIt) {
  const TokenIds prompt = RandomIds(20, 1);
  testing::FakeModel* model = nullptr;
  const auto engine = EngineHarness::Stepped({.max_num_batched_tokens = 16}, &model);
  for (uint32_t i = 0; i < 100; ++i) {
    const auto cancelled = std::make_shared<CollectingSink>();
    auto handle = engine->Submit(ScoreParams(prompt, {RandomIds(60, 1000 + i)}), cancelled);
    ASSERT_TRUE(handle.ok() && engine->RunFrontend());
    for (int step = 0; step < 3; ++step) ASSERT_TRUE(engine->Step());
    EXPECT_EQ(engine->stats().kept.scores, 1);
    (*handle)->Cancel();
    handle->reset();
    while (engine->Step()) {
    }
    EXPECT_EQ(cancelled->status().code(), absl::StatusCode::kCancelled);
    ASSERT_EQ(testing::WhatIsKept(engine->stats()), "");

    const GenerateParams params = ScoreParams(prompt, {RandomIds(5, i)});
    const auto next = std::make_shared<CollectingSink>();
    ASSERT_TRUE(engine->Submit(params, next).ok() && engine->RunFrontend());
    while (engine->Step()) {
    }
    if (i % 20 == 0) ExpectSame(next->sample(), EngineHarness::Fake()->Generate(params));
    ASSERT_EQ(next->sample().logprobs.size(), 5u);
  }
}

}  // namespace
}  // namespace quire::engine
