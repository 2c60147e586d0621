// Tests Engine::liveness, which reports the state of the engine's threads to probes.

#include <atomic>
#include <functional>
#include <semaphore>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"

namespace quire::engine {
namespace {

using testing::EngineHarness;
using testing::GreedyParams;
using testing::RandomIds;

bool WaitUntil(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

TEST(LivenessTest, AStepThatHangsGrowsOldAndAnIdleThreadDoesNot) {
  const auto harness = EngineHarness::Fake();
  const Engine& engine = harness->engine();
  std::binary_semaphore arrived{0};
  std::binary_semaphore go_on{0};
  harness->fake()->before_forward = [&] {
    arrived.release();
    go_on.acquire();
  };
  const auto sink = harness->Submit(GreedyParams(RandomIds(20, 1), 1));
  ASSERT_TRUE(arrived.try_acquire_for(std::chrono::seconds(30)));
  const Liveness hung = engine.liveness();
  EXPECT_GT(hung.step_busy, absl::ZeroDuration());
  EXPECT_EQ(hung.step_tokens, 20);
  EXPECT_EQ(hung.step_sequences, 1);
  EXPECT_TRUE(WaitUntil([&] { return engine.liveness().step_busy > hung.step_busy; }));
  go_on.release();
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(WaitUntil([&] { return engine.liveness().step_busy == absl::ZeroDuration(); }));
}

TEST(LivenessTest, AFrontendThreadIsAsOldAsItsWork) {
  const auto harness = EngineHarness::Fake();
  const Engine& engine = harness->engine();
  std::binary_semaphore go_on{0};
  ASSERT_TRUE(harness->engine().RunOnFrontend("", {}, 0, [&] { go_on.acquire(); }).ok());
  EXPECT_TRUE(WaitUntil([&] { return engine.liveness().frontend_busy > absl::ZeroDuration(); }));
  // The step thread has no work, so it is busy only in the moments when it looks for work.
  EXPECT_TRUE(WaitUntil([&] { return engine.liveness().step_busy == absl::ZeroDuration(); }));
  go_on.release();
  EXPECT_TRUE(WaitUntil([&] { return engine.liveness().frontend_busy == absl::ZeroDuration(); }));
}

TEST(LivenessTest, FailedStepsAreCountedUntilOneSucceeds) {
  const auto harness = EngineHarness::Fake();
  testing::FakeModel& model = *harness->fake();
  std::atomic<bool> device_is_lost = true;
  model.before_forward = [&] {
    if (device_is_lost) model.fail_at_forward = model.num_forwards.load();
  };
  for (uint32_t i = 1; i <= 3; ++i) {
    const auto sink = harness->Submit(GreedyParams(RandomIds(20, i), 5));
    ASSERT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(harness->engine().liveness().failed_steps, i);
    EXPECT_GT(harness->engine().liveness().since_failure, absl::ZeroDuration());
  }
  EXPECT_EQ(harness->engine().stats().steps_failed, 3);
  device_is_lost = false;
  harness->Generate(GreedyParams(RandomIds(20, 4), 5));
  EXPECT_EQ(harness->engine().liveness().failed_steps, 0);
  EXPECT_EQ(harness->engine().stats().steps_failed, 3);
}

}  // namespace
}  // namespace quire::engine
