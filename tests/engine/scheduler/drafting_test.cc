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

TEST_F(DraftingTest, AWrongDraftIsReplaced) {
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
  EXPECT_THAT(Plan(), ElementsAre(9, 1, 2, 3));
}

// A step of n decodes takes 3 + n units of time, so a lone decode yields a quarter of a token in a
// unit, and a draft must yield 1.5 times as much. Guesses begin without credit, and each right one
// takes a twentieth of what is missing to certainty.
TEST_F(DraftingTest, ADraftIsAsLongAsItPays) {
  Restart({.row_share = [](int32_t rows) { return 1.0 / (3 + rows); }});
  Add({1, 1, 1, 1}, 1000);
  Plan();
  Complete({1});
  int num_guesses = 0;
  for (; Plan().empty(); ++num_guesses) Complete({1});
  EXPECT_EQ(num_guesses, 10) << "1 - 0.95^10 is 0.401, and 1 - 0.95^9 is 0.370";
  EXPECT_THAT(plan_.drafts, ElementsAre(1));
  EXPECT_NEAR(scheduler_->stats().drafts_expected, 0.401, 0.001);
  EXPECT_EQ(scheduler_->stats().drafts_price, 0.25);
  // A second draft must yield 1.5 times (1 + the first) / 5, which takes a chance of 0.718. The
  // sequence has it after 25 right guesses.
  for (int num_tokens = 2; num_tokens <= 4; ++num_tokens) {
    if (num_tokens == 3) {
      EXPECT_EQ(num_guesses, 25);
    }
    do {
      EXPECT_EQ(std::ssize(plan_.drafts), num_tokens - 1);
      Complete(std::vector<int32_t>(plan_.drafts.size() + 1, 1));
      ++num_guesses;
    } while (std::ssize(Plan()) < num_tokens);
  }
}

// A guess that is too dear to draft is compared with the token that comes.
TEST_F(DraftingTest, GuessesThatAreNotDraftedAreLearnedFrom) {
  Restart({.row_share = [](int32_t rows) { return 1.0 / (3 + rows); }});
  Add({1, 1, 1, 1}, 1000);
  Plan();
  Complete({1});
  while (Plan().empty()) Complete({1});
  int32_t other = 50;
  Complete({++other, kNone});  // 0.381, which is still enough
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Plan(), IsEmpty()) << "1, 1, 1 has not come again";
    Complete({1});
  }
  EXPECT_THAT(Plan(), ElementsAre(other));
  Complete({++other, kNone});  // 0.362
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(Plan(), IsEmpty());
    Complete({i < 3 ? 1 : other});  // as guessed: 0.394
  }
  EXPECT_THAT(Plan(), ElementsAre(1)) << "1, 1 and the other token were followed by 1";
}

TEST_F(DraftingTest, ASequenceBeginsWithWhatOthersHaveTaught) {
  Restart({.row_share = [](int32_t rows) { return 1.0 / (3 + rows); }});
  for (const bool is_first : {true, false}) {
    const SequenceId id = Add({1, 1, 1, 1}, 1000);
    Plan();
    Complete({1});
    EXPECT_EQ(Plan().empty(), is_first);
    // Each right guess takes a hundredth of what is missing to certainty.
    while (plan_.entries[0].sequence->num_generated() < 100) {
      Complete(std::vector<int32_t>(plan_.drafts.size() + 1, 1));
      Plan();
    }
    Complete(std::vector<int32_t>(plan_.drafts.size() + 1, 1));
    EXPECT_TRUE(scheduler_->Cancel(id).ok());
  }
}

// What a row costs counts for more while a step yields more tokens.
TEST_F(DraftingTest, DecodesAndDraftsOfOthersMakeDraftsDearer) {
  int64_t last = 0;
  for (const int num_sequences : {1, 2, 3}) {
    Restart({.row_share = [](int32_t rows) { return 1.0 / (9 + rows); }});
    for (int i = 0; i < num_sequences; ++i) Add({1, 1, 1, 1}, 1000);
    Plan();
    int64_t num_steps = 0;
    for (; scheduler_->stats().drafted_tokens == 0; ++num_steps) {
      Complete(std::vector<int32_t>(static_cast<size_t>(num_sequences), 1));
      Plan();
    }
    EXPECT_GT(num_steps, last);
    EXPECT_LT(std::ssize(plan_.drafts), num_sequences + 1);
    last = num_steps;
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
  Restart({.max_num_batched_tokens = 5});
  Add({1, 2, 3, 1, 2});
  Plan();
  Complete({3});
  EXPECT_THAT(Plan(), ElementsAre(1, 2, 3));
}

TEST_F(DraftingTest, NothingIsDraftedWhileAPromptIsComputed) {
  Add({1, 2, 3, 1, 2, 3});
  Plan();
  Complete({1});
  Add(Prompt(70, 100));
  for (const int32_t id : {2, 3, 1}) {
    EXPECT_THAT(Plan(), IsEmpty());
    EXPECT_EQ(plan_.entries.size(), 2u);
    Complete(plan_.entries[1].num_samples == 1 ? std::vector{id, 7} : std::vector{id});
  }
  EXPECT_THAT(Plan(), ElementsAre(2, 3, 1, 2));
}

// Prompts that wait take the time that drafts would take, unless nothing can start.
TEST_F(DraftingTest, NothingIsDraftedWhileAPromptMayStart) {
  Restart({.headroom_blocks = 0}, 7);
  Add({1, 2, 3, 1, 2, 3});
  Plan();
  Complete({1});
  Add(Prompt(24, 100));  // of six blocks, and five are free
  EXPECT_THAT(Plan(), IsEmpty());
  EXPECT_EQ(plan_.entries.size(), 1u);
  Complete({2});
  EXPECT_THAT(Plan(), ElementsAre(3, 1, 2, 3));
  Complete({3, 1, 2, 3, 1});
  Add(Prompt(4, 200));
  EXPECT_THAT(Plan(), IsEmpty());
}

}  // namespace
}  // namespace quire::engine
