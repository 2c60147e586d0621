#include "engine/output/continuation_scores.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

constexpr int64_t kVocab = 4;

const ParallelFor kHere = [](int64_t n, const std::function<void(int64_t)>& work) {
  for (int64_t i = 0; i < n; ++i) work(i);
};

class ContinuationScoresTest : public ::testing::Test {
 protected:
  ContinuationScoresTest() {
    request_->prompt_ids = {0, 1};
    request_->continuation_ids = {{2}, {3, 1, 2}};
    sequence_.request = request_;
    sequence_.tokens = request_->prompt_ids;
  }

  // Returns a row of logits for each of `ids`. The logit of the id is 2, and the others are 0.
  std::vector<float> Rows(const std::vector<int32_t>& ids) {
    std::vector<float> rows(ids.size() * kVocab, 0.0f);
    for (size_t i = 0; i < ids.size(); ++i) rows[i * kVocab + ids[i]] = 2.0f;
    return rows;
  }
  void Add(const StepPlanEntry& entry, const std::vector<float>& rows) {
    scores_.AddRows(
        entry, [&](int32_t i) { return std::span<const float>(rows).subspan(i * kVocab, kVocab); });
    scores_.Compute(kHere);
  }

  std::shared_ptr<Request> request_ = std::make_shared<Request>();
  Sequence sequence_;
  ContinuationScores scores_;
};

TEST_F(ContinuationScoresTest, TheFirstTokensShareTheirRowAndTheOthersFollow) {
  const StepPlanEntry prompt{
      .sequence = &sequence_, .num_tokens = 2, .num_logit_rows = 1, .num_samples = 2};
  Add(prompt, Rows({2}));
  ContinuationStep whole = scores_.Take(prompt, 0);
  EXPECT_EQ(whole.token.finish_reason, FinishReason::kLength);
  ASSERT_TRUE(whole.delta.has_value());
  EXPECT_EQ(whole.delta->token_ids, TokenIds({2}));
  const double norm = std::log(std::exp(2.0) + 3);
  EXPECT_NEAR(whole.delta->logprobs[0].chosen.logprob, 2 - norm, 1e-6);
  const ContinuationStep first = scores_.Take(prompt, 1);
  EXPECT_EQ(first.token.id, 3);
  EXPECT_EQ(first.token.finish_reason, FinishReason::kNone);
  EXPECT_FALSE(first.delta.has_value());

  // The sequence is preempted after its first row, and that row is then computed again.
  sequence_.sample_index = 1;
  sequence_.tokens = {0, 1, 3, 1};
  Add({.sequence = &sequence_, .num_tokens = 3, .num_logit_rows = 1}, Rows({1}));
  const StepPlanEntry rest{.sequence = &sequence_,
                           .first_index = 1,
                           .num_tokens = 3,
                           .num_logit_rows = 2,
                           .num_samples = 1};
  Add(rest, Rows({0, 0}));
  const ContinuationStep last = scores_.Take(rest, 0);
  EXPECT_EQ(last.token.id, 2);
  EXPECT_EQ(last.token.finish_reason, FinishReason::kLength);
  ASSERT_TRUE(last.delta.has_value());
  EXPECT_EQ(last.delta->index, 1);
  ASSERT_EQ(last.delta->logprobs.size(), 3u);
  EXPECT_EQ(last.delta->logprobs[1].top[0].token_id, 1) << "the row that came first";
  EXPECT_NEAR(last.delta->logprobs[2].chosen.logprob, -norm, 1e-6);
  scores_.Remove(*request_);
  EXPECT_EQ(scores_.size(), 0);
}

TEST_F(ContinuationScoresTest, ARowWithoutADistributionIsAnError) {
  const StepPlanEntry prompt{
      .sequence = &sequence_, .num_tokens = 2, .num_logit_rows = 1, .num_samples = 2};
  Add(prompt, std::vector<float>(kVocab, std::numeric_limits<float>::quiet_NaN()));
  for (int32_t k = 0; k < 2; ++k) {
    const ContinuationStep step = scores_.Take(prompt, k);
    EXPECT_EQ(step.token.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(step.status.code(), absl::StatusCode::kInternal);
    EXPECT_FALSE(step.delta.has_value());
  }
}

}  // namespace
}  // namespace quire::engine
