// Runs prompts beside a stream on a simulated machine. Its steps advance a fake clock.

#include <algorithm>
#include <atomic>
#include <memory>
#include <semaphore>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/request/retry_after.h"
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

class DeadlineTest : public ::testing::Test {
 protected:
  DeadlineTest() {
    machine_.HoldAt(kHoldAt);
    harness_ = EngineHarness::Fake(
        {.num_blocks = 1024,
         .max_num_batched_tokens = 256,
         .max_model_len = 8192,
         .clock = &machine_.clock(),
         .on_forward = [this](const ModelInput& input) { machine_.Run(input); }});
  }

  // Returns the status of a prompt of `num_tokens` tokens, and adds the tokens that it computed to
  // *num_computed.
  absl::Status Run(int64_t num_tokens, absl::Duration timeout, int64_t* num_computed = nullptr) {
    GenerateParams params = GreedyParams(RandomIds(num_tokens, next_seed_++), 1);
    params.deadline = absl::Now() + timeout;
    const int64_t before = harness_->engine().stats().prompt_tokens_computed;
    const auto sink = harness_->Submit(params);
    EXPECT_TRUE(sink->WaitFinished());
    if (num_computed != nullptr) {
      *num_computed = harness_->engine().stats().prompt_tokens_computed - before;
    }
    return sink->status();
  }

  static constexpr int64_t kHoldAt = 12;
  SlowMachine machine_;
  std::unique_ptr<EngineHarness> harness_;
  uint32_t next_seed_ = 1;
};

// 400 tokens of a prompt take 165 ms and more.
TEST_F(DeadlineTest, WhatCannotBeMetAloneIsRefusedAtOnce) {
  int64_t num_computed = 0;
  EXPECT_EQ(Run(400, absl::Milliseconds(50), &num_computed).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_GT(num_computed, 0) << "at first nothing is known of large steps";
  EXPECT_TRUE(Run(400, absl::Milliseconds(1000)).ok());
  const absl::Status refused = Run(400, absl::Milliseconds(50), &num_computed);
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("send a shorter prompt"));
  EXPECT_EQ(num_computed, 0);
  EXPECT_EQ(harness_->engine().stats().deadlines_refused, 1);
  EXPECT_TRUE(Run(40, absl::Milliseconds(50)).ok());
}

TEST_F(DeadlineTest, PromptsThatAreComputedFirstCount) {
  EXPECT_TRUE(Run(400, absl::Seconds(1)).ok());
  const auto long_prompt = harness_->Submit(GreedyParams(RandomIds(6000, 50), 1));  // 2.4 s
  ASSERT_TRUE(machine_.WaitHeld());
  GenerateParams params = GreedyParams(RandomIds(40, 51), 1);
  params.deadline = absl::Now() + absl::Milliseconds(500);
  const auto refused = harness_->Submit(params);
  params.deadline = absl::Now() + absl::Seconds(10);
  params.prompt = RandomIds(40, 52);
  const auto patient = harness_->Submit(params);
  harness_->WaitForFrontend();
  machine_.LetGo();
  for (const auto& sink : {long_prompt, refused, patient}) ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(refused->status().code(), absl::StatusCode::kResourceExhausted);
  const auto retry = RetryAfter(refused->status());
  ASSERT_TRUE(retry.has_value());
  EXPECT_GT(*retry, absl::Milliseconds(100));
  EXPECT_LT(*retry, absl::Seconds(3));
  EXPECT_TRUE(patient->status().ok()) << patient->status();
  EXPECT_TRUE(long_prompt->status().ok()) << long_prompt->status();
}

TEST(PacingTest, NoStepBesideAStreamIsPlannedLongerThanItsLimit) {
  RunPromptsBesideAStream(/*hiccup=*/false);
}

TEST(PacingTest, OneSlowStepDoesNotMakeThePromptsAfterItCrawl) {
  RunPromptsBesideAStream(/*hiccup=*/true);
}

}  // namespace
}  // namespace quire::engine
