#include "engine/engine.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <semaphore>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"
#include "tests/testing/step_gate.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::FakeModel;
using testing::GreedyParams;
using testing::HarnessOptions;
using ::testing::HasSubstr;
using testing::RandomIds;
using testing::StepGate;
using testing::WhatIsKept;

TEST(EngineTest, AnswersWithWhatTheModelSays) {
  const auto harness = EngineHarness::Fake();
  TokenIds context = RandomIds(20, 1);
  const auto sink = harness->Submit(GreedyParams(context, 9));
  ASSERT_TRUE(sink->WaitFinished());
  for (const int32_t id : sink->sample().token_ids) {
    EXPECT_EQ(id, harness->fake()->NextToken(context));
    context.push_back(id);
  }
  EXPECT_EQ(context.size(), 29);
  EXPECT_EQ(sink->sample().finish_reason, FinishReason::kLength);
  const Usage usage = sink->summary().usage;
  EXPECT_EQ(usage.prompt_tokens, 20);
  EXPECT_EQ(usage.completion_tokens, 9);
  EXPECT_EQ(usage.cached_tokens, 0);
  EXPECT_EQ(harness->engine().stats().generated_tokens, 9);
  EXPECT_EQ(sink->num_after_finish(), 0);
}

TEST(EngineTest, AStepIsNeverLargerThanItsBudget) {
  const auto harness = EngineHarness::Fake({.max_num_seqs = 8, .max_num_batched_tokens = 24});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint32_t i = 0; i < 12; ++i)
    sinks.push_back(harness->Submit(GreedyParams(RandomIds(70, i), 30)));
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(harness->fake()->max_step_tokens, 24);
}

TEST(EngineTest, CancelInMidStepAllowsOneFurtherTokenAtMost) {
  const auto harness = EngineHarness::Fake();
  StepGate gate(*harness);
  const auto sink = harness->Submit(GreedyParams(RandomIds(20, 1), 400));
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(gate.WaitForStep());
    gate.LetGo();
  }
  ASSERT_TRUE(gate.WaitForStep());  // the sixth is under way, five tokens are out
  EXPECT_TRUE(sink->WaitDeltas(5));
  const int64_t forwards = harness->fake()->num_forwards;
  harness->handles[0]->Cancel();
  gate.Open();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kCancelled);
  EXPECT_LE(sink->sample().token_ids.size(), 6);
  EXPECT_EQ(sink->sample().finish_reason, FinishReason::kAbort);
  EXPECT_EQ(harness->fake()->num_forwards, forwards + 1) << "only the step under way was finished";
  harness->ExpectIdleIsEmpty();
}

// An engine whose steps a test makes, and what of it a test looks at.
struct Stepped {
  explicit Stepped(const HarnessOptions& options)
      : engine(EngineHarness::Stepped(options, &model)) {
    warm_up = model->num_tokens;
  }
  // Submitted, validated and tokenized; the step thread sees it at the next Step.
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
  EXPECT_EQ(stepped.num_tokens(), 20 + 2);  // all but the last token
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
  // Room for one of the two: the stalled one makes way.
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

// Holds every frontend thread, so that what is submitted meanwhile waits unvalidated.
class HeldFrontend {
 public:
  explicit HeldFrontend(EngineHarness& harness) {
    for (int32_t i = 0; i < kThreads; ++i) {
      EXPECT_TRUE(harness.engine()
                      .RunOnFrontend(0,
                                     [this] {
                                       arrived_.release();
                                       go_.acquire();
                                     })
                      .ok());
      arrived_.acquire();
    }
  }
  void LetGo() { go_.release(kThreads); }

 private:
  static constexpr int32_t kThreads = 2;  // EngineConfig's default
  std::counting_semaphore<> arrived_{0};
  std::counting_semaphore<> go_{0};
};

TEST(EngineTest, ACancelBeforeTheFrontendEndsWhatWasNeverValidated) {
  const auto harness = EngineHarness::Fake();
  const int64_t warm_up = harness->fake()->num_tokens;
  HeldFrontend frontend(*harness);
  GenerateParams params = GreedyParams(RandomIds(20, 1), 3);
  params.sampling.n = 0;
  const auto sink = harness->Submit(params);
  harness->handles[0]->Cancel();
  frontend.LetGo();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(sink->num_deltas(), 0);
  harness->ExpectIdleIsEmpty();
  EXPECT_EQ(harness->fake()->num_tokens, warm_up);
  EXPECT_EQ(harness->engine().stats().requests_rejected, 0) << "its client gave it up";
}

TEST(EngineTest, ADeadlineThatPassesBeforeTheFrontendEndsIt) {
  const auto harness = EngineHarness::Fake();
  const int64_t warm_up = harness->fake()->num_tokens;
  HeldFrontend frontend(*harness);
  GenerateParams params = GreedyParams(RandomIds(20, 1), 3);
  params.deadline = absl::Now();
  const auto sink = harness->Submit(params);
  frontend.LetGo();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(harness->fake()->num_tokens, warm_up);
}

TEST(EngineTest, CancelOfOneSampleRequestEndsAllItsSamples) {
  const auto harness = EngineHarness::Fake();
  StepGate gate(*harness);
  GenerateParams params = GreedyParams(RandomIds(20, 1), 400);
  params.sampling.n = 4;
  const auto sink = harness->Submit(params);
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(gate.WaitForStep());
    gate.LetGo();
  }
  ASSERT_TRUE(gate.WaitForStep());
  harness->handles[0]->Cancel();
  gate.Open();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kCancelled);
  for (int32_t k = 0; k < 4; ++k) EXPECT_EQ(sink->sample(k).finish_reason, FinishReason::kAbort);
  harness->ExpectIdleIsEmpty();
}

TEST(EngineTest, ADeadlineThatPassesEndsIt) {
  const auto harness = EngineHarness::Fake({.max_model_len = 4096});
  StepGate gate(*harness);
  GenerateParams params = GreedyParams(RandomIds(20, 1), 1000);
  params.deadline = absl::Now() + absl::Milliseconds(50);
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(gate.WaitForStep());
  while (absl::Now() < params.deadline) std::this_thread::yield();
  gate.Open();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LE(sink->sample().token_ids.size(), 1);
}

TEST(EngineTest, AStalledReaderStallsItselfAloneAndIsEnded) {
  const auto harness = EngineHarness::Fake({.stalled_stream_timeout = absl::Milliseconds(300)});
  const auto stalled = harness->Submit(GreedyParams(RandomIds(20, 1), 400), /*room=*/5);
  ASSERT_TRUE(stalled->WaitDeltas(5));
  const auto other = harness->Submit(GreedyParams(RandomIds(20, 2), 200));
  ASSERT_TRUE(other->WaitFinished());
  EXPECT_TRUE(other->status().ok());
  ASSERT_TRUE(stalled->WaitFinished());
  EXPECT_EQ(stalled->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(stalled->sample().token_ids.size(), 5);
  harness->ExpectIdleIsEmpty();
}

TEST(EngineTest, AStalledReaderThatReadsAgainGoesOn) {
  const auto harness = EngineHarness::Fake();
  const GenerateParams params = GreedyParams(RandomIds(20, 1), 60);
  const auto sink = harness->Submit(params, /*room=*/5);
  ASSERT_TRUE(sink->WaitDeltas(5));
  sink->SetRoom(-1);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(sink->status().ok());
  EXPECT_EQ(sink->sample().token_ids, EngineHarness::Fake()->Generate(params).token_ids);
}

TEST(EngineTest, AFailedStepFailsItsRequestsAndNoOthers) {
  const auto harness = EngineHarness::Fake();
  harness->fake()->fail_at_forward = 4;
  const auto sink = harness->Submit(GreedyParams(RandomIds(20, 1), 50));
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(sink->status().message()), HasSubstr("on fire"));
  EXPECT_EQ(harness->Generate(GreedyParams(RandomIds(20, 2), 5)).token_ids.size(), 5);
  harness->ExpectIdleIsEmpty();
}

TEST(EngineTest, RefusesAtOnceWhatItCannotTake) {
  const auto harness = EngineHarness::Fake({.num_blocks = 16, .max_num_seqs = 1, .max_queue = 2});
  StepGate gate(*harness);
  const auto sink = std::make_shared<CollectingSink>();
  GenerateParams params = GreedyParams(RandomIds(20, 1), 5);

  params.model = "another";
  EXPECT_EQ(harness->engine().Submit(params, sink).status().code(), absl::StatusCode::kNotFound);

  params.model = "tiny";
  params.request_id = "mine";
  const auto running = harness->Submit(params);
  ASSERT_TRUE(gate.WaitForStep());
  EXPECT_EQ(harness->engine().Submit(params, sink).status().code(),
            absl::StatusCode::kAlreadyExists);

  params.request_id.clear();
  const auto second = harness->Submit(params), third = harness->Submit(params);
  EXPECT_EQ(harness->engine().Submit(params, sink).status().code(),
            absl::StatusCode::kResourceExhausted);

  harness->engine().StartDrain();
  EXPECT_EQ(harness->engine().Submit(params, sink).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness->engine().WaitIdle(absl::Milliseconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  gate.Open();
  ASSERT_TRUE(harness->engine().WaitIdle(absl::Seconds(30)).ok());
  for (const auto& accepted : {running, second, third}) {
    ASSERT_TRUE(accepted->WaitFinished());
    EXPECT_TRUE(accepted->status().ok()) << accepted->status();
  }
  EXPECT_EQ(sink->num_deltas(), 0);
  EXPECT_EQ(harness->engine().stats().requests_rejected, 4);
}

TEST(EngineTest, LengthsThatCannotFitNameTheNumbers) {
  const auto harness = EngineHarness::Fake({.num_blocks = 16, .max_model_len = 200});
  const auto refused = [&](GenerateParams params) {
    const auto sink = harness->Submit(std::move(params));
    EXPECT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sink->status().message());
  };
  EXPECT_THAT(refused(GreedyParams(RandomIds(200, 1), 1)),
              AllOf(HasSubstr("at most 199 tokens"), HasSubstr("got 200")));
  EXPECT_THAT(refused(GreedyParams(RandomIds(100, 1), 101)),
              AllOf(HasSubstr("at most 100"), HasSubstr("got 101")));
  GenerateParams many = GreedyParams(RandomIds(100, 1), 90);
  many.sampling.n = 8;
  EXPECT_THAT(refused(many), AllOf(HasSubstr("256 tokens"), HasSubstr("100 + 90 x 8")));
  EXPECT_THAT(refused(GreedyParams({}, 5)), HasSubstr("at least one token"));
  EXPECT_THAT(refused(GreedyParams({7, 999}, 5)), HasSubstr("token_ids[1]"));
}

TEST(EngineTest, SamplesThatJustFitTheCacheRunSideBySide) {
  const auto harness = EngineHarness::Fake({.num_blocks = 13});
  GenerateParams params = GreedyParams(RandomIds(20, 1), 44);
  params.sampling.n = 4;
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->summary().usage.completion_tokens, 4 * 44);
  EXPECT_EQ(harness->engine().stats().preemptions, 0);
}

TEST(EngineTest, WithoutMaxTokensGoesToTheContextsEnd) {
  const auto harness = EngineHarness::Fake({.max_model_len = 100});
  GenerateParams params = GreedyParams(RandomIds(20, 1), 1);
  params.stop.max_tokens.reset();
  const CollectingSink::Sample sample = harness->Generate(params);
  EXPECT_EQ(sample.token_ids.size(), 80);
  EXPECT_EQ(sample.finish_reason, FinishReason::kLength);
}

TEST(EngineTest, AStopStringEndsTheSequenceInTheScheduler) {
  const auto harness = EngineHarness::Fake();
  const GenerateParams params = GreedyParams(RandomIds(20, 1), 30);
  const CollectingSink::Sample whole = harness->Generate(params);
  // Two tokens that are ASCII, as bytes: the string crosses a token border.
  const auto both_ascii = [](int32_t a, int32_t b) { return a < 128 && b < 128; };
  const auto pair = std::ranges::adjacent_find(whole.token_ids, both_ascii);
  ASSERT_NE(pair, whole.token_ids.end());
  GenerateParams stopped = params;
  stopped.stop.stop = {std::string{static_cast<char>(pair[0]), static_cast<char>(pair[1])}};
  const int64_t steps_before = harness->engine().stats().steps;
  const CollectingSink::Sample sample = harness->Generate(stopped);
  const int64_t num_tokens = pair - whole.token_ids.begin() + 2;
  EXPECT_EQ(std::ssize(sample.token_ids), num_tokens);
  EXPECT_EQ(sample.finish_reason, FinishReason::kStop);
  EXPECT_EQ(sample.stop_string, stopped.stop.stop[0]);
  EXPECT_EQ(harness->engine().stats().steps - steps_before, num_tokens) << "and no step behind it";
}

TEST(EngineTest, AbortIsForTheOwnerAlone) {
  const auto harness = EngineHarness::Fake();
  StepGate gate(*harness);
  GenerateParams params = GreedyParams(RandomIds(20, 1), 100);
  params.request_id = "r";
  params.owner = "alice";
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(gate.WaitForStep());
  EXPECT_EQ(harness->engine().Abort("r", "bob").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(harness->engine().Abort("r", "alice").ok());
  gate.Open();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kCancelled);
}

TEST(EngineTest, GoesWithRequestsInEveryState) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  {
    const auto harness =
        EngineHarness::Fake({.num_blocks = 40, .max_num_seqs = 4, .max_model_len = 512});
    for (uint32_t i = 0; i < 40; ++i)
      sinks.push_back(harness->Submit(GreedyParams(RandomIds(50, i), 400)));
    ASSERT_TRUE(sinks.front()->WaitDeltas(2));
    harness->handles.clear();
  }
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->num_after_finish(), 0);
    EXPECT_TRUE(sink->status().ok() || sink->status().code() == absl::StatusCode::kCancelled)
        << sink->status();
  }
}

TEST(EngineTest, ManyThreadsSubmitAndCancel) {
  const auto harness = EngineHarness::Fake({.num_blocks = 64, .max_num_seqs = 8});
  std::vector<std::thread> clients;
  for (uint32_t client = 0; client < 8; ++client) {
    clients.emplace_back([&harness, client] {
      for (uint32_t i = 0; i < 20; ++i) {
        const auto sink = std::make_shared<CollectingSink>();
        const auto handle =
            harness->engine().Submit(GreedyParams(RandomIds(10 + i, client), 40), sink);
        ASSERT_TRUE(handle.ok()) << handle.status();
        if (i % 3 == 0) {
          sink->WaitDeltas(i / 3);
          (*handle)->Cancel();
        }
        ASSERT_TRUE(sink->WaitFinished());
        EXPECT_EQ(sink->num_after_finish(), 0);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  harness->ExpectIdleIsEmpty();
}

double ThreadCpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// What the step thread spends until a victim has its 20 tokens beside `other`, which may be
// refused.
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

// Each list as long as a message can hold it. CPU time of one thread, the least of three; a list
// that is walked for every token would cost a thousand times as much.
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

TEST(EngineTest, TokenizesAndDetokenizes) {
  const auto harness = EngineHarness::Fake();
  const std::vector<Piece> pieces = *harness->engine().Tokenize("ab", false, false);
  ASSERT_EQ(pieces.size(), 2);
  EXPECT_EQ(pieces[1].id, 'b');
  EXPECT_EQ(pieces[1].begin, 1);
  EXPECT_EQ(*harness->engine().Detokenize({'a', 'b'}, true), "ab");
  EXPECT_EQ(harness->engine().Detokenize({-1}, true).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(harness->engine().ApplyChatTemplate({{"user", "hi"}}, true).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace quire::engine
