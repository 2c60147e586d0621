#include "engine/output/continuation_scores.h"

#include <utility>

#include "base/check.h"

namespace quire::engine {

ContinuationScores::Scores& ContinuationScores::Find(const Request& request, int32_t continuation) {
  std::vector<Scores>& scores = scores_[&request];
  scores.resize(request.continuation_ids.size());
  return scores[continuation];
}

void ContinuationScores::Add(const Request& request, int32_t continuation, int64_t index,
                             absl::StatusOr<kernels::SampledRow> row) {
  Scores& scores = Find(request, continuation);
  if (index < std::ssize(scores.tokens)) return;  // computed again after a preemption
  scores.status.Update(row.status());
  scores.tokens.push_back(row.ok() ? *std::move(row->logprobs) : PositionLogprobs());
}

ContinuationStep ContinuationScores::Take(const StepPlanEntry& entry, int32_t k) {
  const Request& request = *entry.sequence->request;
  const int32_t sample = entry.sequence->sample_index + k;
  const TokenIds& ids = request.continuation_ids[sample];
  Scores& scores = Find(request, sample);
  const bool ended = scores.tokens.size() == ids.size();
  QUIRE_CHECK(ended || scores.tokens.size() == 1)
      << scores.tokens.size() << " of " << ids.size() << " scores";
  if (!scores.status.ok()) {
    return {.token = {.id = ids.front(), .finish_reason = FinishReason::kAbort, .is_void = true},
            .status = scores.status};
  }
  if (!ended) return {.token = {.id = ids.front()}};
  return {.token = {.id = ids.back(), .finish_reason = FinishReason::kLength},
          .delta = TokenDelta{.index = sample,
                              .token_ids = ids,
                              .logprobs = std::move(scores.tokens),
                              .finish_reason = FinishReason::kLength}};
}

}  // namespace quire::engine
