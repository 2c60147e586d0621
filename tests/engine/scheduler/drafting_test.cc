// Tests how many tokens the scheduler drafts, and what becomes of them. The tests choose the tokens
// that each step draws. tests/engine/drafts_test.cc tests that drafts change no answer.

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/kv/block_manager.h"
#include "engine/scheduler/scheduler.h"
#include "tests/engine/scheduler/simulation.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kNone = SampledToken::kNotDrawn;

class DraftingTest : public ::testing::Test {
 protected:
  explicit DraftingTest() { Restart({}); }

  void Restart(SchedulerConfig config, int32_t num_blocks = 64) {
    config.max_num_seqs = 4;
    if (config.max_num_batched_tokens == 0) config.max_num_batched_tokens = 32;
    config.max_logit_rows = 16;
    config.stalled_stream_timeout = absl::Seconds(30);
    if (config.max_draft_tokens == 0) config.max_draft_tokens = 4;
    scheduler_.reset();
    blocks_ = std::make_unique<BlockManager>(
        BlockManagerConfig{.num_blocks = num_blocks, .block_size = 4});
    scheduler_ = std::make_unique<Scheduler>(config, *blocks_);
  }
  SequenceId Add(std::vector<int32_t> prompt, int32_t max_tokens = 100) {
    auto request = std::make_shared<Request>();
    request->prompt_ids = std::move(prompt);
    request->max_tokens = max_tokens;
    request->sink = std::make_shared<FakeSink>();
    Sequence sequence;
    sequence.id = next_id_++;
    sequence.tokens = request->prompt_ids;
    sequence.request = std::move(request);
    scheduler_->Add(std::move(sequence));
    return next_id_ - 1;
  }
  // Plans a step and returns its drafts.
  std::vector<int32_t> Plan() {
    plan_ = scheduler_->Schedule(absl::UnixEpoch());
    return plan_.drafts;
  }
  // Completes the step with these tokens.
  void Complete(const std::vector<int32_t>& ids, FinishReason last = FinishReason::kNone) {
    SampledTokens sampled;
    for (const int32_t id : ids) sampled.tokens.push_back({.id = id});
    for (size_t i = sampled.tokens.size(); i-- > 0;) {
      if (sampled.tokens[i].id == kNone) continue;
      sampled.tokens[i].finish_reason = last;
      break;
    }
    tokens_ = plan_.entries[0].sequence->tokens;
    finished_ = scheduler_->Complete(plan_, sampled);
    if (finished_.empty()) tokens_ = plan_.entries[0].sequence->tokens;
    scheduler_->CheckInvariants();
  }

  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plan_;
  std::vector<FinishedSequence> finished_;
  std::vector<int32_t> tokens_;  // of the first sequence of the plan
  SequenceId next_id_ = 1;
};

TEST_F(DraftingTest, AcceptedDraftsAndTheTokenAfterThemAreTheSequences) {
  Add({1, 2, 3, 1, 2, 3});
  EXPECT_THAT(Plan(), IsEmpty());
  Complete({1});
  EXPECT_THAT(Plan(), ElementsAre(2, 3, 1, 2));
  EXPECT_EQ(plan_.entries[0].num_tokens, 5);
  EXPECT_EQ(plan_.num_tokens, 5);
  Complete({2, 3, 1, 2, 3});
  EXPECT_THAT(tokens_, ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3));
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.drafted_tokens, 4);
  EXPECT_EQ(stats.accepted_tokens, 4);
  EXPECT_EQ(stats.generated_tokens, 6);
  EXPECT_EQ(stats.recomputed_tokens, 0);
}

TEST_F(DraftingTest, AWrongDraftIsReplacedAndTheNextIsAsLongAsWhatWasRight) {
  Add({1, 2, 3, 1, 2, 3});
  Plan();
  Complete({1});
  EXPECT_THAT(Plan(), ElementsAre(2, 3, 1, 2));
  Complete({2, 3, 9, kNone, kNone});
  EXPECT_THAT(tokens_, ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3, 9));
  EXPECT_EQ(scheduler_->stats().accepted_tokens, 2);
  // The last three tokens are new until 1, 2, 3 come again.
  for (const int32_t id : {1, 2, 3}) {
    EXPECT_THAT(Plan(), IsEmpty());
    EXPECT_EQ(plan_.entries[0].first_index, std::ssize(tokens_) - 1);
    Complete({id});
  }
  EXPECT_THAT(Plan(), ElementsAre(9, 1));  // two were right
  Complete({8, kNone, kNone});
  for (const int32_t id : {1, 2, 3}) {
    Plan();
    Complete({id});
  }
  EXPECT_THAT(Plan(), ElementsAre(8));  // none was right
  Complete({8, 1});
  EXPECT_THAT(Plan(), ElementsAre(2, 3));  // twice as many, because all were right
  Complete({2, 3, 8});
  EXPECT_THAT(Plan(), ElementsAre(1, 2, 3, 8));
}

TEST_F(DraftingTest, WrongDraftsInARowPauseDraftsForLongerAndLonger) {
  Add({1, 1, 1, 1});
  Plan();
  Complete({1});
  int32_t other = 50;
  // After a different token, three decodes pass before 1, 1, 1 comes again.
  for (const int32_t pause : {0, 3, 3, 7, 15, 15}) {
    int32_t num_without = 0;
    for (; Plan().empty(); ++num_without) Complete({1});
    EXPECT_EQ(num_without, pause);
    std::vector<int32_t> ids(plan_.drafts.size() + 1, kNone);
    ids[0] = ++other;
    Complete(ids);
  }
}

TEST_F(DraftingTest, ATokenThatEndsTheSequenceEndsItAmongDrafts) {
  Add({1, 2, 3, 1, 2, 3});
  Plan();
  Complete({1});
  Plan();
  Complete({2, 3, kNone, kNone, kNone}, FinishReason::kStop);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_THAT(finished_[0].sequence->tokens, ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3));
  EXPECT_EQ(blocks_->stats().num_held, 0);
}

TEST_F(DraftingTest, AStepThatFailsKeepsNothing) {
  Add({1, 2, 3, 1, 2, 3});
  Plan();
  Complete({1});
  Plan();
  EXPECT_EQ(scheduler_->Fail(plan_).size(), 1u);
  scheduler_->CheckInvariants();
  EXPECT_EQ(blocks_->stats().num_held, 0);
}

TEST_F(DraftingTest, NoMoreIsDraftedThanTheRequestMayHave) {
  Add({1, 2, 3, 1, 2, 3}, 4);
  Plan();
  Complete({1});
  EXPECT_THAT(Plan(), ElementsAre(2, 3));  // one token is drawn after them
}

TEST_F(DraftingTest, DecodesAndDraftsTogetherAreFew) {
  Restart({.max_tokens_with_drafts = 5});
  for (int i = 0; i < 2; ++i) Add({1, 2, 3, 1, 2, 3});
  Plan();
  Complete({1, 1});
  EXPECT_THAT(Plan(), ElementsAre(2, 3, 1));  // beside two decodes
  EXPECT_EQ(plan_.entries[1].num_drafts, 0);
}

TEST_F(DraftingTest, ADraftLeavesABlockForEachSequence) {
  for (const int32_t num_blocks : {6, 7}) {
    Restart({.headroom_blocks = 0}, num_blocks);
    Add({1, 2, 3, 1, 2, 3});
    Add({5, 6, 7, 5, 6, 7});
    Plan();
    Complete({1, 5});
    // Each sequence holds two blocks. With drafts, sequence 1 needs a third block.
    if (num_blocks == 6) {
      EXPECT_THAT(Plan(), IsEmpty());
    } else {
      EXPECT_THAT(Plan(), ElementsAre(2, 3, 1, 2));
    }
  }
}

// If drafts filled a step, no other sequence could ever start.
TEST_F(DraftingTest, DraftsLeaveATokenForAStart) {
  Restart({.max_num_batched_tokens = 5, .max_tokens_with_drafts = 64});
  Add({1, 2, 3, 1, 2, 3});
  Plan();  // five tokens of the prompt
  Complete({});
  Plan();
  Complete({1});
  Add({5, 6, 7});
  EXPECT_THAT(Plan(), ElementsAre(2, 3, 1));
  EXPECT_EQ(plan_.entries.size(), 2u);
}

TEST_F(DraftingTest, NothingIsDraftedWhileAPromptIsComputed) {
  Add({1, 2, 3, 1, 2, 3});
  Plan();
  Complete({1});
  Add(Prompt(70, 100));
  EXPECT_THAT(Plan(), ElementsAre(2, 3, 1, 2));  // the prompt starts in this step
  Complete({2, 3, 1, 2, 3});
  EXPECT_THAT(Plan(), IsEmpty());
  EXPECT_EQ(plan_.entries.size(), 2u);
  Complete({1});
}

}  // namespace
}  // namespace quire::engine
