// Runs prompts beside a stream on a simulated machine. Its steps advance a fake clock.

#include <algorithm>
#include <atomic>
#include <semaphore>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::FakeClock;
using testing::GreedyParams;
using testing::RandomIds;

constexpr absl::Duration kTarget = absl::Milliseconds(60);
constexpr int64_t kPromptLen = 400;
constexpr int64_t kNumPrompts = 6;

// Advances a clock by 5 ms for each step, plus 0.5 ms for each decode and 0.4 ms for each prompt
// token. The step thread calls Run. The test reads the counts only while the step thread is held or
// after it has ended.
class SlowMachine {
 public:
  void Run(const ModelInput& input) {
    int64_t decodes = 0;
    for (size_t i = 0; i + 1 < input.query_starts.size(); ++i) {
      decodes += input.query_starts[i + 1] - input.query_starts[i] == 1 ? 1 : 0;
    }
    const int64_t prompt_tokens = input.num_tokens() - decodes;
    absl::Duration elapsed = absl::Milliseconds(5) + decodes * absl::Microseconds(500) +
                             prompt_tokens * absl::Microseconds(400);
    if (decodes > 0 && prompt_tokens > 0) {
      ++num_mixed_;
      longest_mixed_ = std::max(longest_mixed_, elapsed);
    }
    const int64_t step = num_steps_++;
    if (step == hiccup_at_) elapsed += absl::Milliseconds(200);
    clock_.Advance(elapsed);
    if (step != hold_at_) return;
    held_.release();
    go_.acquire();
  }

  // Call HoldAt and HiccupAt before the first step.
  void HoldAt(int64_t step) { hold_at_ = step; }
  void HiccupAt(int64_t step) { hiccup_at_ = step; }
  bool WaitHeld() { return held_.try_acquire_for(std::chrono::seconds(30)); }
  void LetGo() { go_.release(); }

  const FakeClock& clock() const { return clock_; }
  int64_t num_mixed() const { return num_mixed_; }
  absl::Duration longest_mixed() const { return longest_mixed_; }

 private:
  FakeClock clock_;
  int64_t hold_at_ = -1;
  int64_t hiccup_at_ = -1;
  int64_t num_steps_ = 0;
  int64_t num_mixed_ = 0;
  absl::Duration longest_mixed_;
  std::counting_semaphore<> held_{0};
  std::counting_semaphore<> go_{0};
};

// Runs a stream and then prompts beside it. With `hiccup`, the last step before the prompts arrive
// takes 200 ms longer.
void RunPromptsBesideAStream(bool hiccup) {
  SlowMachine machine;
  machine.HoldAt(12);
  if (hiccup) machine.HiccupAt(12);
  const auto harness = EngineHarness::Fake(
      {.num_blocks = 1024,
       .max_num_batched_tokens = 256,
       .max_model_len = 8192,
       .max_step_time = kTarget,
       .clock = &machine.clock(),
       .on_forward = [&machine](const ModelInput& input) { machine.Run(input); }});
  const auto stream = harness->Submit(GreedyParams(RandomIds(4, 1), 4000));
  ASSERT_TRUE(machine.WaitHeld());
  std::vector<std::shared_ptr<CollectingSink>> prompts;
  for (uint32_t i = 0; i < kNumPrompts; ++i) {
    prompts.push_back(harness->Submit(GreedyParams(RandomIds(kPromptLen, 10 + i), 1)));
  }
  machine.LetGo();
  for (const auto& prompt : prompts) ASSERT_TRUE(prompt->WaitFinished());
  harness->handles[0]->Cancel();
  ASSERT_TRUE(stream->WaitFinished());
  harness->Stop();

  EXPECT_LE(machine.longest_mixed(), kTarget * 12 / 10);
  // A step of the target length has room for (60 - 5 - 0.5) ms / 0.4 ms = 136 prompt tokens. Some
  // steps have fewer, because they are planned smaller or because a prompt ends in them.
  EXPECT_GE(machine.num_mixed(), kPromptLen * kNumPrompts / 136);
  EXPECT_LE(machine.num_mixed(), kPromptLen * kNumPrompts / 136 * 3 / 2);
}

TEST(PacingTest, NoStepBesideAStreamIsPlannedLongerThanItsLimit) {
  RunPromptsBesideAStream(/*hiccup=*/false);
}

TEST(PacingTest, OneSlowStepDoesNotMakeThePromptsAfterItCrawl) {
  RunPromptsBesideAStream(/*hiccup=*/true);
}

}  // namespace
}  // namespace quire::engine
