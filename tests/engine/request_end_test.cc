// Tests of requests that end before their last token, in each state of a request. They end by a
// cancel, an abort, a deadline, a reader that does not read, a failed step, or the engine's own
// end.

#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"
#include "tests/testing/step_gate.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::GreedyParams;
using ::testing::HasSubstr;
using testing::RandomIds;
using testing::StepGate;

TEST(RequestEndTest, CancelInMidStepAllowsOneFurtherTokenAtMost) {
  const auto harness = EngineHarness::Fake();
  StepGate gate(*harness);
  const auto sink = harness->Submit(GreedyParams(RandomIds(20, 1), 400));
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(gate.WaitForStep());
    gate.LetGo();
  }
  ASSERT_TRUE(gate.WaitForStep());  // the sixth step is under way; five tokens are out
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

// Holds every frontend thread, so that requests submitted meanwhile wait unvalidated.
class HeldFrontend {
 public:
  explicit HeldFrontend(EngineHarness& harness) {
    for (int32_t i = 0; i < kThreads; ++i) {
      EXPECT_TRUE(harness.engine()
                      .RunOnFrontend("", {}, 0,
                                     [doors = doors_] {
                                       doors->arrived.release();
                                       doors->go.acquire();
                                     })
                      .ok());
      doors_->arrived.acquire();
    }
  }
  void LetGo() { doors_->go.release(kThreads); }

 private:
  static constexpr int32_t kThreads = 2;  // EngineConfig's default
  struct Doors {
    std::counting_semaphore<> arrived{0};
    std::counting_semaphore<> go{0};
  };
  const std::shared_ptr<Doors> doors_ = std::make_shared<Doors>();  // shared with the held threads
};

TEST(RequestEndTest, NoTenantFillsTheFrontendsQueue) {
  const auto harness = EngineHarness::Fake();
  HeldFrontend frontend(*harness);
  std::counting_semaphore<> done{0};
  int num_taken = 0;
  const auto is_taken = [&](const char* tenant, const TenantLimits& limits) {
    const absl::Status status =
        harness->engine().RunOnFrontend(tenant, limits, 0, [&] { done.release(); });
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    num_taken += status.ok() ? 1 : 0;
    return status.ok();
  };
  const TenantLimits one_of_several{.leaves_room = true};
  while (is_taken("greedy", one_of_several)) {
  }
  EXPECT_EQ(num_taken, 128) << "half of the queue";
  EXPECT_TRUE(is_taken("other", one_of_several));
  const TenantLimits two_wait{.max_waiting = 2};
  for (const bool want : {true, true, false}) EXPECT_EQ(is_taken("small", two_wait), want);
  const auto request = harness->Submit(GreedyParams(RandomIds(20, 1), 1));
  frontend.LetGo();
  ASSERT_TRUE(request->WaitFinished());
  EXPECT_TRUE(request->status().ok());
  for (int i = 0; i < num_taken; ++i) done.acquire();
  EXPECT_TRUE(is_taken("greedy", one_of_several)) << "there is room again";
  done.acquire();
}

TEST(RequestEndTest, ACancelBeforeTheFrontendEndsWhatWasNeverValidated) {
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

TEST(RequestEndTest, ADeadlineThatPassesBeforeTheFrontendEndsIt) {
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

TEST(RequestEndTest, CancelOfOneSampleRequestEndsAllItsSamples) {
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

TEST(RequestEndTest, ADeadlineThatPassesEndsIt) {
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

TEST(RequestEndTest, AStalledReaderStallsItselfAloneAndIsEnded) {
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

TEST(RequestEndTest, AStalledReaderThatReadsAgainGoesOn) {
  const auto harness = EngineHarness::Fake();
  const GenerateParams params = GreedyParams(RandomIds(20, 1), 60);
  const auto sink = harness->Submit(params, /*room=*/5);
  ASSERT_TRUE(sink->WaitDeltas(5));
  sink->SetRoom(-1);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(sink->status().ok());
  EXPECT_EQ(sink->sample().token_ids, EngineHarness::Fake()->Generate(params).token_ids);
}

TEST(RequestEndTest, AFailedStepFailsItsRequestsAndNoOthers) {
  const auto harness = EngineHarness::Fake();
  harness->fake()->fail_at_forward = 4;
  const auto sink = harness->Submit(GreedyParams(RandomIds(20, 1), 50));
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(sink->status().message()), HasSubstr("on fire"));
  EXPECT_EQ(harness->Generate(GreedyParams(RandomIds(20, 2), 5)).token_ids.size(), 5);
  harness->ExpectIdleIsEmpty();
}

TEST(RequestEndTest, AbortIsForTheOwnerAlone) {
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

TEST(RequestEndTest, GoesWithRequestsInEveryState) {
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

TEST(RequestEndTest, ManyThreadsSubmitAndCancel) {
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

}  // namespace
}  // namespace quire::engine
