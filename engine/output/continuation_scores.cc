#include "engine/output/continuation_scores.h"

#include <utility>

#include "base/check.h"
#include "engine/sampling/logprobs.h"

namespace quire::engine {

std::vector<std::vector<PositionLogprobs>>& ContinuationScores::Find(const Request& request) {
  auto& scores = scores_[&request];
  scores.resize(request.continuation_ids.size());
  return scores;
}

void ContinuationScores::AddRow(std::span<const float> logits, const Request& request,
                                int32_t sample, int64_t index) {
  std::vector<PositionLogprobs>& scores = Find(request)[sample];
  if (index < std::ssize(scores)) return;  // computed again after a preemption
  rows_.push_back(
      {.logits = logits, .target = request.continuation_ids[sample][index], .scores = &scores});
}

void ContinuationScores::AddRows(const StepPlanEntry& entry, const RowOf& row_of) {
  const Sequence& sequence = *entry.sequence;
  const Request& request = *sequence.request;
  if (sequence.num_generated() == 0) {
    // The last row of the prompt scores the first token of each continuation.
    for (int32_t k = 0; k < entry.num_samples; ++k) {
      AddRow(row_of(entry.num_logit_rows - 1), request, sequence.sample_index + k, 0);
    }
    return;
  }
  const int64_t first =
      entry.first_index + entry.num_tokens - entry.num_logit_rows - sequence.prompt_len() + 1;
  for (int32_t i = 0; i < entry.num_logit_rows; ++i) {
    AddRow(row_of(i), request, sequence.sample_index, first + i);
  }
}

void ContinuationScores::Compute(const ParallelFor& parallel_for) {
  if (rows_.empty()) return;
  results_.resize(rows_.size());
  parallel_for(std::ssize(rows_), [this](int64_t i) {
    results_[i] = ComputeLogprobs(rows_[i].logits, rows_[i].target, /*num_top=*/1);
  });
  for (size_t i = 0; i < rows_.size(); ++i) rows_[i].scores->push_back(std::move(results_[i]));
  rows_.clear();
}

ContinuationStep ContinuationScores::Take(const StepPlanEntry& entry, int32_t k) {
  const Request& request = *entry.sequence->request;
  const int32_t sample = entry.sequence->sample_index + k;
  const TokenIds& ids = request.continuation_ids[sample];
  std::vector<PositionLogprobs>& scores = Find(request)[sample];
  const bool ended = scores.size() == ids.size();
  QUIRE_CHECK(ended || scores.size() == 1) << scores.size() << " of " << ids.size() << " scores";
  for (const PositionLogprobs& score : scores) {
    if (!score.top.empty()) continue;
    return {.token = {.id = ids.front(), .finish_reason = FinishReason::kAbort, .is_void = true},
            .status = absl::InternalError("logits: no finite value is the largest of a row")};
  }
  if (!ended) return {.token = {.id = ids.front()}};
  return {.token = {.id = ids.back(), .finish_reason = FinishReason::kLength},
          .delta = TokenDelta{.index = sample,
                              .token_ids = ids,
                              .logprobs = std::move(scores),
                              .finish_reason = FinishReason::kLength}};
}

}  // namespace quire::engine
