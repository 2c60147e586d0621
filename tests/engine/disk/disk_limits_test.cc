// Tests deadlines and quotas of requests whose prompts are on disk. A token takes 10 ms to compute,
// and a block as long as the test says to read.

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/engine/disk/faulty_disk.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/temp_directory.h"

namespace quire::engine {
namespace {

using testing::GreedyParams;
using testing::RandomIds;

class DiskLimitsTest : public ::testing::Test {
 protected:
  using Sink = std::shared_ptr<testing::CollectingSink>;

  void Start() {
    engine_.reset();  // which frees the directory
    engine_ = testing::EngineHarness::Stepped(
        {.kv_disk_dir = temp_.path(),
         .kv_disk_mib = 16,
         .clock = &clock_,
         .on_forward =
             [this](const ModelInput& input) {
               clock_.Advance(input.num_tokens() * absl::Milliseconds(10));
             }},
        &model_);
  }
  Sink Submit(GenerateParams params, absl::Duration timeout = absl::InfiniteDuration()) {
    auto sink = std::make_shared<testing::CollectingSink>();
    if (timeout != absl::InfiniteDuration()) params.deadline = absl::Now() + timeout;
    auto handle = engine_->Submit(std::move(params), sink);
    EXPECT_TRUE(handle.ok()) << handle.status();
    if (handle.ok()) handles_.push_back(*std::move(handle));
    while (engine_->RunFrontend()) {
    }
    return sink;
  }
  void RunUntilIdle() {
    while (engine_->RunFrontend() || engine_->Step()) {
    }
  }
  Sink Run(GenerateParams params, absl::Duration timeout = absl::InfiniteDuration()) {
    const Sink sink = Submit(std::move(params), timeout);
    RunUntilIdle();
    EXPECT_TRUE(sink->finished());
    return sink;
  }
  static GenerateParams Prompt(uint32_t number) {
    return GreedyParams(RandomIds(kPromptLen, number), 1);
  }
  // Begins a run that knows what computing and reading take, and has read nothing of prompt 1,
  // which is on disk.
  void StartWithDisk(absl::Duration read_time) {
    Start();
    for (uint32_t i = 1; i <= 2; ++i) Run(Prompt(i));
    Start();
    testing::Disk().on_read = [this, read_time] { clock_.Advance(read_time); };
    Run(Prompt(2));
    Run(Prompt(next_prompt_++));
  }
  static int64_t DiskTokens(const Sink& sink) { return sink->summary().usage.disk_tokens; }

  // Computing a prompt takes 2 s, of which four fifths are certain, and its last 8 tokens 80 ms.
  static constexpr int64_t kPromptLen = 200;
  static constexpr int64_t kTokensOnDisk = 192;
  static constexpr absl::Duration kTimeout = absl::Seconds(1);

  testing::HealsDisk heals_;
  testing::TempDirectory temp_;
  testing::FakeClock clock_;
  testing::FakeModel* model_ = nullptr;
  std::unique_ptr<SteppedEngine> engine_;
  std::vector<std::shared_ptr<SubmittedRequest>> handles_;
  uint32_t next_prompt_ = 10;
};

TEST_F(DiskLimitsTest, ADeadlineThatTheDiskCanMeetIsNotRefused) {
  StartWithDisk(absl::Milliseconds(1));
  const Sink computed = Run(Prompt(next_prompt_++), kTimeout);
  EXPECT_EQ(computed->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engine_->stats().deadlines_refused, 1);
  const Sink read = Run(Prompt(1), kTimeout);
  EXPECT_TRUE(read->status().ok()) << read->status();
  EXPECT_EQ(DiskTokens(read), kTokensOnDisk);
  EXPECT_EQ(engine_->stats().deadlines_refused, 1);
}

TEST_F(DiskLimitsTest, ADeadlineThatTheDiskCannotMeetIsRefused) {
  // 12 blocks take 1.8 s, which is sooner than computing, and not soon enough.
  StartWithDisk(absl::Milliseconds(150));
  const Sink read = Run(Prompt(1), kTimeout);
  EXPECT_EQ(read->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engine_->stats().deadlines_refused, 1);
  EXPECT_EQ(DiskTokens(Run(Prompt(1))), kTokensOnDisk);
}

// The long prompt takes 4 s. What the disk has is not computed behind it.
TEST_F(DiskLimitsTest, BehindOtherPromptsWhatIsOnDiskDoesNotCount) {
  StartWithDisk(absl::Milliseconds(1));
  const absl::Duration timeout = absl::Milliseconds(4200);  // four fifths of 5250 ms
  Submit(GreedyParams(RandomIds(400, next_prompt_++), 1));
  engine_->Step();
  const Sink read = Submit(Prompt(1), timeout);
  const Sink computed = Submit(Prompt(next_prompt_++), absl::Milliseconds(3500));
  RunUntilIdle();
  EXPECT_TRUE(read->status().ok()) << read->status();
  EXPECT_EQ(computed->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->stats().deadlines_refused, 1);
}

TEST_F(DiskLimitsTest, ADeadlineBehindANamedPrefixOnDiskIsNotRefused) {
  Start();
  std::string name;
  engine_->prefixes()
      .Create({.caller = {.tenant = "a"}, .content = RandomIds(kPromptLen, 3)},
              [&](auto info) { name = info->name; })
      .IgnoreError();
  RunUntilIdle();
  ASSERT_NE(name, "");
  StartWithDisk(absl::Milliseconds(1));
  GenerateParams params = GreedyParams(RandomIds(10, 4), 1);
  params.prefix_name = name;
  params.sched.tenant = "a";
  const Sink sink = Run(params, kTimeout);
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->summary().usage.prefix_tokens, kPromptLen);
  EXPECT_EQ(engine_->stats().deadlines_refused, 0);
}

// The first sequence holds 4 blocks. The second one wants 12 from disk.
TEST_F(DiskLimitsTest, ATenantAtItsQuotaComputesWhatIsOnDisk) {
  for (const int32_t max_blocks : {15, 16}) {
    StartWithDisk(absl::Milliseconds(1));
    const int64_t hits = engine_->stats().disk.hits;
    GenerateParams first = GreedyParams(RandomIds(60, next_prompt_++), 20), second = Prompt(1);
    first.limits.max_blocks = second.limits.max_blocks = max_blocks;
    const Sink runs = Submit(first);
    engine_->Step();
    const Sink waits = Submit(second);
    RunUntilIdle();
    EXPECT_TRUE(runs->status().ok()) << runs->status();
    EXPECT_TRUE(waits->status().ok()) << waits->status();
    EXPECT_EQ(DiskTokens(waits), max_blocks == 15 ? 0 : kTokensOnDisk);
    EXPECT_EQ(engine_->stats().disk.hits - hits, max_blocks == 15 ? 0 : 12);
    EXPECT_EQ(testing::WhatIsKept(engine_->stats()), "");
  }
}

}  // namespace
}  // namespace quire::engine
