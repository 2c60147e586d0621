// Tests that an engine acts in the right step. Each test drives the steps itself, without threads.

#include <algorithm>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/admission/step_channel.h"
#include "tests/testing/engine_harness.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::FakeModel;
using testing::GreedyParams;
using testing::HarnessOptions;
using testing::RandomIds;
using testing::WhatIsKept;

// Holds an engine whose steps a test drives, the model of the engine, and the handles of the
// requests.
struct Stepped {
  explicit Stepped(const HarnessOptions& options)
      : engine(EngineHarness::Stepped(options, &model)) {
    warm_up = model->num_tokens;
  }
  // Submits a request and runs the frontend, which validates and tokenizes the request. The next
  // Step sees the request.
  std::shared_ptr<CollectingSink> Submit(GenerateParams params, int64_t room = -1) {
    auto sink = std::make_shared<CollectingSink>(room);
    handles.push_back(*engine->Submit(std::move(params), sink));
    EXPECT_TRUE(engine->RunFrontend());
    return sink;
  }
  void RunUntilIdle() {
    while (engine->Step()) {
    }
    EXPECT_TRUE(engine->WaitIdle(absl::ZeroDuration()).ok());
    EXPECT_EQ(WhatIsKept(engine->stats()), "");
  }
  int64_t num_tokens() const { return model->num_tokens - warm_up; }

  FakeModel* model = nullptr;
  std::unique_ptr<SteppedEngine> engine;
  std::vector<std::shared_ptr<SubmittedRequest>> handles;
  int64_t warm_up = 0;
};

TEST(EngineTest, CancelWhileWaitingNeverRunsIt) {
  Stepped stepped({.max_num_seqs = 1});
  const auto first = stepped.Submit(GreedyParams(RandomIds(20, 1), 3));
  const auto second = stepped.Submit(GreedyParams(RandomIds(20, 2), 3));
  EXPECT_TRUE(stepped.engine->Step());
  EXPECT_EQ(stepped.engine->stats().kept.sequences, 2) << "the second waits in the scheduler";
  stepped.handles[1]->Cancel();
  EXPECT_TRUE(stepped.engine->Step());
  EXPECT_TRUE(second->finished());
  EXPECT_FALSE(first->finished());
  stepped.RunUntilIdle();
  EXPECT_EQ(second->status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(second->sample().token_ids.empty());
  EXPECT_TRUE(first->status().ok());
  EXPECT_EQ(stepped.num_tokens(), 20 + 2);  // every token but the last generated one
}

TEST(EngineTest, ACancelledRequestWaitsNoLongerForItsKey) {
  Stepped stepped({});
  GenerateParams params = GreedyParams(RandomIds(20, 1), 3);
  params.request_id = "mine";
  const auto first = stepped.Submit(params);
  const auto sink = std::make_shared<CollectingSink>();
  const auto second = *stepped.engine->Submit(params, sink);
  EXPECT_FALSE(stepped.engine->RunFrontend()) << "it waits before the frontend";
  EXPECT_FALSE(sink->finished());
  second->Cancel();
  EXPECT_TRUE(sink->finished()) << "without a timer";
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kCancelled);
  stepped.RunUntilIdle();
  EXPECT_TRUE(first->status().ok()) << first->status();
}

TEST(EngineTest, ADeadlineThatPassesWhileWaitingEndsIt) {
  Stepped stepped({.max_num_seqs = 1});
  const auto first = stepped.Submit(GreedyParams(RandomIds(20, 1), 4));
  EXPECT_TRUE(stepped.engine->Step());
  GenerateParams params = GreedyParams(RandomIds(20, 2), 3);
  params.deadline = absl::Now() + absl::Milliseconds(200);
  const auto second = stepped.Submit(params);
  EXPECT_TRUE(stepped.engine->Step());
  EXPECT_EQ(stepped.engine->stats().kept.sequences, 2);
  absl::SleepFor(params.deadline - absl::Now());
  EXPECT_TRUE(stepped.engine->Step());
  EXPECT_TRUE(second->finished());
  EXPECT_EQ(second->status().code(), absl::StatusCode::kDeadlineExceeded);
  stepped.RunUntilIdle();
  EXPECT_TRUE(first->status().ok());
  EXPECT_EQ(stepped.num_tokens(), 20 + 3);
}

TEST(EngineTest, AnIdleStepThreadIsWokenByAReaderAlone) {
  Stepped stepped({});
  const auto sink = stepped.Submit(GreedyParams(RandomIds(20, 1), 30), /*room=*/5);
  while (stepped.engine->Step()) {
  }
  EXPECT_EQ(sink->num_deltas(), 5);
  EXPECT_FALSE(stepped.engine->Step()) << "nothing has happened";
  sink->SetRoom(-1);
  stepped.RunUntilIdle();
  EXPECT_EQ(sink->sample().token_ids.size(), 30);
}

TEST(EngineTest, AStalledReaderThatWasPreemptedIsWokenToo) {
  // Only one of the two requests can run at a time. So the stalled request is preempted.
  Stepped stepped({.num_blocks = 8, .max_num_seqs = 1});
  const GenerateParams params = GreedyParams(RandomIds(40, 1), 20);
  const auto stalled = stepped.Submit(params, /*room=*/2);
  while (stepped.engine->Step()) {
  }
  const auto other = stepped.Submit(GreedyParams(RandomIds(40, 2), 20));
  while (stepped.engine->Step()) {
  }
  EXPECT_TRUE(other->finished());
  EXPECT_FALSE(stalled->finished());
  EXPECT_GT(stepped.engine->stats().preemptions, 0);
  stalled->SetRoom(-1);
  stepped.RunUntilIdle();
  EXPECT_EQ(stalled->sample().token_ids, EngineHarness::Fake()->Generate(params).token_ids);
}

TEST(EngineTest, ARowThatIsNoDistributionLeavesNothingInTheCache) {
  Stepped stepped({.max_num_batched_tokens = 32});
  const GenerateParams params = GreedyParams(RandomIds(80, 1), 4);
  stepped.model->void_rows = true;
  const auto broken = stepped.Submit(params);
  stepped.RunUntilIdle();
  EXPECT_EQ(broken->status().code(), absl::StatusCode::kInternal);
  EXPECT_GT(stepped.engine->stats().steps, 2) << "its prompt came in chunks";
  EXPECT_EQ(stepped.engine->stats().blocks_cached, 0);
  stepped.model->void_rows = false;
  const auto next = stepped.Submit(params);
  stepped.RunUntilIdle();
  EXPECT_TRUE(next->status().ok());
  EXPECT_EQ(next->summary().usage.cached_tokens, 0);
}

double ThreadCpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Runs a victim, which is a request for 20 tokens, beside `other`. Returns the CPU seconds of the
// steps until the victim ends, as the minimum of three runs. The engine may refuse `other`.
double CostBeside(GenerateParams other) {
  Stepped stepped(
      {.num_blocks = 4096, .max_num_seqs = 65, .max_num_batched_tokens = 128, .num_threads = 1});
  std::vector<double> costs;
  for (uint32_t i = 0; i < 3; ++i) {
    const auto company = stepped.Submit(other);
    const auto victim = stepped.Submit(GreedyParams(RandomIds(10, i), 20));
    const double begin = ThreadCpuSeconds();
    while (!victim->finished()) stepped.engine->Step();
    costs.push_back(ThreadCpuSeconds() - begin);
    EXPECT_TRUE(victim->status().ok());
    stepped.handles[2 * i]->Cancel();
    stepped.RunUntilIdle();
  }
  return *std::ranges::min_element(costs);
}

// Each case gives the other request one expensive option, such as a list of 2^20 allowed ids. The
// test allows eight times the usual cost. If the engine walked such a list for every token, a step
// would cost far more.
TEST(EngineTest, AVictimsStepsCostWhatTheModelAsksNotAMessage) {
  constexpr size_t kMany = 1 << 20;
  GenerateParams plain = GreedyParams(RandomIds(100, 9), 300);
  plain.sampling.temperature = 1.0f;
  plain.sampling.n = 64;
  const double usual = CostBeside(plain);
  const auto expect_alike = [&](const char* what, auto change) {
    GenerateParams params = plain;
    change(params);
    EXPECT_LE(CostBeside(params), 8 * usual) << what;
  };
  const int32_t vocab = 258;
  for (const size_t count : {size_t{vocab}, kMany}) {
    expect_alike("allowed ids", [&](auto& p) { p.sampling.allowed_token_ids.assign(count, 7); });
    expect_alike("stop ids", [&](auto& p) {
      p.stop.stop_token_ids.assign(count, 7);
      p.stop.min_tokens = 300;
    });
  }
  expect_alike("biases", [&](auto& p) { p.sampling.logit_bias.assign(1024, {.token_id = 7}); });
  expect_alike("stop strings", [&](auto& p) {
    for (char c = 'a'; c < 'a' + 16; ++c) p.stop.stop.push_back(std::string(255, 'x') + c);
  });
  expect_alike("penalties", [&](auto& p) { p.sampling.repetition_penalty = 1.5f; });
  expect_alike("logprobs", [&](auto& p) { p.output.top_logprobs = 20; });
  expect_alike("continuations", [&](auto& p) {
    for (int i = 0; i < 64; ++i) p.continuations.push_back(RandomIds(100, i));
  });
  expect_alike("a prompt's logprobs", [&](auto& p) {
    p.prompt = RandomIds(200, 9);
    p.output.prompt_logprobs = 20;
  });
}

// Flushes the cache in the middle of a stream. The stream still gets one token in each step. Later
// requests get no hit on tokens computed before the flush. This includes the stream's blocks,
// although they enter the cache after the flush.
TEST(FlushTest, LaterRequestsFindNothingAndStreamsGoOn) {
  Stepped stepped(
      {.block_size = 4, .num_blocks = 4096, .max_num_batched_tokens = 2048, .max_model_len = 8192});
  constexpr int64_t kBlocks = 1100;
  const std::vector<int32_t> cached = RandomIds(4 * kBlocks, 1);
  stepped.Submit(GreedyParams(cached, 1));
  stepped.RunUntilIdle();
  ASSERT_EQ(stepped.engine->stats().blocks_cached, kBlocks);
  const std::vector<int32_t> running = RandomIds(40, 2);
  const auto stream = stepped.Submit(GreedyParams(running, 20));
  stepped.engine->Step();
  ASSERT_EQ(stream->sample().token_ids.size(), 1);

  absl::StatusOr<int64_t> answer = absl::UnknownError("no answer yet");
  stepped.engine->FlushPrefixCache([&](absl::StatusOr<int64_t> result) { answer = result; });
  const std::vector<int64_t> left = {kBlocks - 512, kBlocks - 1024, 0};
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnknown);
    EXPECT_TRUE(stepped.engine->Step());
    EXPECT_EQ(stepped.engine->stats().blocks_cached, left[i]);
    EXPECT_EQ(stream->sample().token_ids.size(), 2 + i);
  }
  EXPECT_THAT(answer, absl::StatusOr<int64_t>(kBlocks));
  stepped.RunUntilIdle();
  EXPECT_TRUE(stream->status().ok());
  EXPECT_EQ(stepped.engine->stats().blocks_cached, 15) << "the stream's blocks are cached as usual";

  for (const std::vector<int32_t>& prompt : {cached, running}) {
    const auto again = stepped.Submit(GreedyParams(prompt, 1));
    stepped.RunUntilIdle();
    EXPECT_EQ(again->summary().usage.cached_tokens, 0);
    const auto once_more = stepped.Submit(GreedyParams(prompt, 1));
    stepped.RunUntilIdle();
    EXPECT_EQ(once_more->summary().usage.cached_tokens, prompt.size() - 1);
  }
}

// A request that was admitted before the flush may still use the cache. A request that was admitted
// after it may not, even if one step takes both the flush and the request.
TEST(FlushTest, IsOrderedWithRequests) {
  Stepped stepped({});
  const std::vector<int32_t> prompt = RandomIds(64, 1);
  stepped.Submit(GreedyParams(prompt, 1));
  stepped.RunUntilIdle();
  std::vector<int64_t> freed;
  const auto flush = [&] {
    stepped.engine->FlushPrefixCache([&](absl::StatusOr<int64_t> n) { freed.push_back(*n); });
  };
  flush();
  flush();
  const auto after = stepped.Submit(GreedyParams(prompt, 1));
  stepped.RunUntilIdle();
  EXPECT_EQ(after->summary().usage.cached_tokens, 0);
  EXPECT_EQ(freed, std::vector<int64_t>({4, 0})) << "one flush after the other";
}

TEST(FlushTest, AnEngineThatEndsAnswersThemAll) {
  constexpr int kCalls = 70;
  int num_answered = 0;
  int num_refused = 0;
  {
    Stepped stepped({});
    for (int i = 0; i < kCalls; ++i) {
      stepped.engine->FlushPrefixCache([&](const absl::StatusOr<int64_t>& answer) {
        ++num_answered;
        num_refused += absl::IsResourceExhausted(answer.status()) ? 1 : 0;
      });
    }
    EXPECT_EQ(num_answered, kCalls - StepChannel::kMaxCommands);
  }
  EXPECT_EQ(num_answered, kCalls);
  EXPECT_EQ(num_refused, kCalls - StepChannel::kMaxCommands);
}

}  // namespace
}  // namespace quire::engine
