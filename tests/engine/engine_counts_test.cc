// Tests that the gauges, counters and times of an engine match the requests that a test sent.

#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"
#include "tests/testing/step_gate.h"

namespace quire::engine {
namespace {

using testing::EngineHarness;
using testing::GreedyParams;
using ::testing::HasSubstr;
using testing::RandomIds;
using testing::StepGate;

TEST(EngineCountsTest, WhatWaitsCountsOnceAndNoLongerThanItWaits) {
  // Two requests run on 18 blocks of 16 tokens. All other requests have to wait.
  const auto harness = EngineHarness::Fake({.num_blocks = 18, .max_num_seqs = 2});
  StepGate gate(*harness);
  const auto older = harness->Submit(GreedyParams(RandomIds(100, 1), 100));
  ASSERT_TRUE(gate.WaitForStep());
  const auto younger = harness->Submit(GreedyParams(RandomIds(100, 2), 100));
  harness->WaitForFrontend();
  GenerateParams two = GreedyParams(RandomIds(20, 3), 10);
  two.sampling.n = 2;
  for (int i = 0; i < 3; ++i) harness->Submit(two);
  harness->WaitForFrontend();
  const auto step = [&] {
    gate.LetGo();
    ASSERT_TRUE(gate.WaitForStep());
  };
  // Two prompts of 100 tokens take four steps, because a step computes at most 64 tokens.
  for (int i = 0; i < 4; ++i) step();
  Stats stats = harness->engine().stats();
  EXPECT_EQ(stats.num_running, 2);
  EXPECT_EQ(stats.num_waiting, 3);

  for (int i = 2; i < 5; ++i) harness->handles[i]->Cancel();
  step();
  stats = harness->engine().stats();
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.finished_by_reason[static_cast<size_t>(FinishReason::kAbort)], 3 * 2);

  // A preempted request counts as waiting again. The cancelled requests, which never ran, no longer
  // count.
  while (harness->engine().stats().preemptions == 0) step();
  EXPECT_EQ(harness->engine().stats().num_waiting, 1);
  EXPECT_EQ(harness->engine().stats().num_running, 1);
  gate.Open();
  ASSERT_TRUE(older->WaitFinished());
  ASSERT_TRUE(younger->WaitFinished());
  EXPECT_EQ(younger->summary().usage.num_preemptions, 1);
  EXPECT_EQ(older->summary().usage.num_preemptions, 0);
  EXPECT_EQ(harness->engine().stats().num_waiting, 0);
}

TEST(EngineCountsTest, TimesBeginWhenTheRequestComes) {
  constexpr absl::Duration kHeld = absl::Milliseconds(50);
  const auto harness = EngineHarness::Fake({.max_num_seqs = 1});
  StepGate gate(*harness);
  const auto first = harness->Submit(GreedyParams(RandomIds(20, 1), 3));
  ASSERT_TRUE(gate.WaitForStep());
  const auto queued = harness->Submit(GreedyParams(RandomIds(20, 2), 2));
  const absl::Time release = absl::Now() + kHeld;
  while (absl::Now() < release) std::this_thread::yield();
  gate.Open();
  double ttft = 0.0, gaps = 0.0;
  for (const auto& [sink, num_gaps] : {std::pair(first, 2), std::pair(queued, 1)}) {
    ASSERT_TRUE(sink->WaitFinished());
    const Timings timings = sink->summary().timings;
    EXPECT_EQ(timings.ttft, timings.queue + timings.prefill);
    EXPECT_GT(timings.decode, absl::ZeroDuration());
    ttft += absl::ToDoubleSeconds(timings.ttft);
    gaps += absl::ToDoubleSeconds(timings.decode) / num_gaps;
  }
  EXPECT_GE(queued->summary().timings.queue, kHeld);
  const Stats stats = harness->engine().stats();
  EXPECT_NEAR(stats.ttft.sum, ttft, 1e-9);
  EXPECT_NEAR(stats.tpot.sum, gaps, 1e-9);
}

TEST(EngineCountsTest, UsageComesWithEachMessageWhenAskedFor) {
  const auto harness = EngineHarness::Fake();
  GenerateParams params = GreedyParams(RandomIds(20, 1), 5);
  for (const bool asked : {false, true}) {
    params.output.usage_per_chunk = asked;
    const auto sink = harness->Submit(params);
    ASSERT_TRUE(sink->WaitFinished());
    std::vector<int64_t> tokens;
    for (const Usage& usage : sink->usages()) tokens.push_back(usage.completion_tokens);
    EXPECT_EQ(tokens, asked ? std::vector<int64_t>({1, 2, 3, 4, 5}) : std::vector<int64_t>());
  }
}

TEST(EngineCountsTest, ASampleThatCannotBeDrawnEndsTheOthers) {
  const auto harness = EngineHarness::Fake();
  StepGate gate(*harness);
  GenerateParams params = GreedyParams(RandomIds(20, 1), 400);
  params.sampling.n = 3;
  const auto sink = harness->Submit(params);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(gate.WaitForStep());
    if (i == 2) harness->fake()->nan_row = 1;  // the row of the second sample
    gate.LetGo();
  }
  gate.Open();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_THAT(std::string(sink->status().message()), HasSubstr("want a finite maximum"));
  for (int32_t k = 0; k < 3; ++k) {
    EXPECT_EQ(sink->sample(k).finish_reason, FinishReason::kAbort);
    EXPECT_EQ(sink->sample(k).token_ids.size(), k == 1 ? 2u : 3u);
  }
  ASSERT_TRUE(harness->engine().WaitIdle(absl::Seconds(30)).ok());
  EXPECT_EQ(harness->engine().stats().blocks_held, 0);
}

TEST(EngineCountsTest, WhatTheRequestItselfForbidsToDrawIsItsOwnError) {
  const auto harness = EngineHarness::Fake();
  GenerateParams params = GreedyParams(RandomIds(20, 1), 5);
  params.sampling.allowed_token_ids = {7};
  params.stop.stop_token_ids = {7};
  params.stop.min_tokens = 2;
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sink->status().message()), HasSubstr("sampling.allowed_token_ids"));
}

// A new request and Stop wake sleeping threads. Without a wake-up, a thread would look for work
// only a second later. On average, the request and Stop must each take less than half a second.
TEST(EngineCountsTest, AnIdleEngineWakesForWorkAndForItsEnd) {
  constexpr int kRounds = 3;
  absl::Duration answering, ending;
  for (int round = 0; round < kRounds; ++round) {
    const auto harness = EngineHarness::Fake();
    absl::SleepFor(absl::Milliseconds(20));  // gives the engine's threads time to fall asleep
    absl::Time begin = absl::Now();
    harness->Generate(GreedyParams(RandomIds(20, 1), 1));
    answering += absl::Now() - begin;
    absl::SleepFor(absl::Milliseconds(20));
    begin = absl::Now();
    harness->Stop();
    ending += absl::Now() - begin;
  }
  EXPECT_LT(answering, kRounds * absl::Milliseconds(500));
  EXPECT_LT(ending, kRounds * absl::Milliseconds(500));
}

}  // namespace
}  // namespace quire::engine
