// Tests of SamplingParams::best_of: the best samples of a request are those that the same request
// with n = best_of draws, chosen and ordered by the mean of their log-probabilities.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::ExpectSame;
using ::testing::HasSubstr;
using testing::RandomIds;

GenerateParams Sampled(int32_t n, int32_t max_tokens) {
  GenerateParams params;
  params.prompt = RandomIds(41, 4);
  params.sampling.temperature = 1.5f;
  params.sampling.seed = 1000;
  params.sampling.n = n;
  params.stop.max_tokens = max_tokens;
  params.output.token_ids = true;
  params.answers_at_once = true;
  return params;
}

double MeanLogprob(const CollectingSink::Sample& sample) {
  double sum = 0.0;
  for (const PositionLogprobs& position : sample.logprobs) {
    sum += static_cast<double>(position.chosen.logprob);
  }
  return sum / static_cast<double>(sample.logprobs.size());
}

TEST(BestOfTest, TheBestComeFirstAndNothingElse) {
  const auto harness = EngineHarness::TinyLlama();
  for (const bool wants_logprobs : {false, true}) {
    GenerateParams all = Sampled(7, 24);
    all.output.top_logprobs = 0;
    const auto drawn = harness->Submit(all);
    ASSERT_TRUE(drawn->WaitFinished());
    std::vector<std::pair<double, int32_t>> order;
    for (int32_t k = 0; k < 7; ++k) order.emplace_back(-MeanLogprob(drawn->sample(k)), k);
    std::ranges::sort(order);
    ASSERT_NE(order[0].second, 0);  // the test would see nothing

    GenerateParams best = Sampled(3, 24);
    best.sampling.best_of = 7;
    if (wants_logprobs) best.output.top_logprobs = 0;
    const auto sink = harness->Submit(best);
    ASSERT_TRUE(sink->WaitFinished());
    ASSERT_TRUE(sink->status().ok()) << sink->status();
    for (int32_t rank = 0; rank < 3; ++rank) {
      CollectingSink::Sample want = drawn->sample(order[rank].second);
      if (!wants_logprobs) want.logprobs.clear();
      const CollectingSink::Sample got = sink->sample(rank);
      ExpectSame(got, want);
      EXPECT_EQ(got.seed, 1000u + static_cast<uint64_t>(order[rank].second));
      EXPECT_EQ(got.score, -order[rank].first);
    }
    EXPECT_EQ(sink->num_deltas(), 3);
    EXPECT_EQ(sink->summary().usage.completion_tokens, drawn->summary().usage.completion_tokens);
  }
  harness->ExpectIdleIsEmpty();
}

TEST(BestOfTest, OfEqualSamplesTheEarlierComesFirst) {
  const auto harness = EngineHarness::TinyLlama();
  GenerateParams params = Sampled(2, 8);
  params.sampling.temperature = 0.0f;  // all samples are equal
  params.sampling.best_of = 4;
  params.output.prompt_logprobs = 0;
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->sample(0).seed, 1000u);
  EXPECT_EQ(sink->sample(1).seed, 1001u);
  EXPECT_EQ(sink->prompt_logprobs().size(), 40u);
}

// The log-probabilities of the prompt belong to no sample, and come even if sample 0 is left out.
TEST(BestOfTest, ThePromptsLogProbabilitiesStay) {
  const auto harness = EngineHarness::TinyLlama();
  GenerateParams params = Sampled(1, 24);
  params.sampling.best_of = 7;
  params.output.prompt_logprobs = 0;
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_NE(sink->sample(0).seed, 1000u);
  EXPECT_EQ(sink->prompt_logprobs().size(), 40u);
}

TEST(BestOfTest, AStreamMayHaveItOnlyWhereItChoosesNothing) {
  const auto harness = EngineHarness::TinyLlama();
  GenerateParams params = Sampled(2, 8);
  params.answers_at_once = false;
  params.sampling.best_of = 3;
  const auto refused = harness->Submit(params);
  ASSERT_TRUE(refused->WaitFinished());
  EXPECT_EQ(refused->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused->status().message()),
              HasSubstr("sampling.best_of: want n (2) in a stream"));
  params.sampling.best_of = 2;
  const auto streamed = harness->Submit(params);
  ASSERT_TRUE(streamed->WaitFinished());
  EXPECT_TRUE(streamed->status().ok()) << streamed->status();
  EXPECT_EQ(streamed->sample(0).seed, 1000u);
  EXPECT_EQ(streamed->sample(0).num_deltas, 8);
  EXPECT_FALSE(streamed->sample(0).score.has_value());
}

TEST(BestOfTest, TheLimitsOfNHoldForAllSamples) {
  const auto harness = EngineHarness::TinyLlama({.num_blocks = 16, .max_num_seqs = 8});
  const auto refused = [&](const GenerateParams& params) {
    const auto sink = harness->Submit(params);
    EXPECT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sink->status().message());
  };
  GenerateParams params = Sampled(2, 8);
  params.sampling.best_of = 9;
  EXPECT_THAT(refused(params), HasSubstr("sampling.best_of: want at most max_num_seqs (8)"));
  params = Sampled(2, 90);
  params.sampling.best_of = 8;
  EXPECT_THAT(refused(params), HasSubstr("41 + 90 x 8"));
  params = Sampled(2, 8);
  params.sampling.best_of = 1;
  EXPECT_THAT(refused(params), HasSubstr("sampling.best_of: want n (2) to 64, got 1"));
  params = Sampled(1, 8);
  params.sampling.best_of = 2;
  params.resume = {.token_ids = {{1}, {2}}, .text_bytes = {0, 0}};
  EXPECT_THAT(refused(params), HasSubstr("resume_token_ids: want none with sampling.best_of"));
}

TEST(BestOfTest, ACancelledRequestAnswersWithItsStatusAlone) {
  const auto harness = EngineHarness::TinyLlama();
  GenerateParams params = Sampled(1, 400);
  params.sampling.best_of = 4;
  params.stop.ignore_eos = true;
  const auto sink = harness->Submit(params);
  harness->handles.back()->Cancel();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(sink->num_deltas(), 0);
}

}  // namespace
}  // namespace quire::engine
