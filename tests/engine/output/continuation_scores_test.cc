#include "engine/output/continuation_scores.h"

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

class ContinuationScoresTest : public ::testing::Test {
 protected:
  ContinuationScoresTest() {
    request_->prompt_ids = {0, 1};
    request_->continuation_ids = {{2}, {3, 1, 2}};
    sequence_.request = request_;
    sequence_.tokens = request_->prompt_ids;
  }

  void Add(int32_t continuation, int64_t index, float logprob) {
    const int32_t id = request_->continuation_ids[continuation][index];
    scores_.Add(*request_, continuation, index,
                kernels::SampledRow{
                    .id = id,
                    .logprobs = PositionLogprobs{.chosen = {.token_id = id, .logprob = logprob}}});
  }

  std::shared_ptr<Request> request_ = std::make_shared<Request>();
  Sequence sequence_;
  ContinuationScores scores_;
};

TEST_F(ContinuationScoresTest, AContinuationIsCompleteWithItsLastToken) {
  const StepPlanEntry prompt{.sequence = &sequence_, .num_tokens = 2, .num_samples = 2};
  Add(0, 0, -1.0f);
  Add(1, 0, -2.0f);
  ContinuationStep whole = scores_.Take(prompt, 0);
  EXPECT_EQ(whole.token.finish_reason, FinishReason::kLength);
  ASSERT_TRUE(whole.delta.has_value());
  EXPECT_EQ(whole.delta->token_ids, TokenIds({2}));
  EXPECT_EQ(whole.delta->logprobs[0].chosen.logprob, -1.0f);
  const ContinuationStep first = scores_.Take(prompt, 1);
  EXPECT_EQ(first.token.id, 3);
  EXPECT_EQ(first.token.finish_reason, FinishReason::kNone);
  EXPECT_FALSE(first.delta.has_value());

  // The sequence is preempted after its second token, and that token is then scored again.
  sequence_.sample_index = 1;
  sequence_.tokens = {0, 1, 3, 1};
  Add(1, 1, -3.0f);
  Add(1, 1, -30.0f);
  Add(1, 2, -4.0f);
  const ContinuationStep last = scores_.Take({.sequence = &sequence_, .num_samples = 1}, 0);
  EXPECT_EQ(last.token.id, 2);
  EXPECT_EQ(last.token.finish_reason, FinishReason::kLength);
  ASSERT_TRUE(last.delta.has_value());
  EXPECT_EQ(last.delta->index, 1);
  ASSERT_EQ(last.delta->logprobs.size(), 3u);
  EXPECT_EQ(last.delta->logprobs[1].chosen.logprob, -3.0f) << "the row that came first";
  EXPECT_EQ(last.delta->logprobs[2].chosen.logprob, -4.0f);
  scores_.Remove(*request_);
  EXPECT_EQ(scores_.size(), 0);
}

TEST_F(ContinuationScoresTest, ARowWithAnErrorEndsItsContinuation) {
  const StepPlanEntry prompt{.sequence = &sequence_, .num_tokens = 2, .num_samples = 2};
  scores_.Add(*request_, 0, 0, absl::InternalError("no finite maximum"));
  Add(1, 0, -1.0f);
  const ContinuationStep step = scores_.Take(prompt, 0);
  EXPECT_EQ(step.token.finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(step.token.is_void);
  EXPECT_EQ(step.status, absl::InternalError("no finite maximum"));
  EXPECT_FALSE(step.delta.has_value());
  EXPECT_TRUE(scores_.Take(prompt, 1).status.ok());
}

}  // namespace
}  // namespace quire::engine
