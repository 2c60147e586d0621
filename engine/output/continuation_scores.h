#pragma once

// Collects the results of scoring requests: the log-probability of each token of each continuation,
// row by row.

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/request/request.h"
#include "engine/scheduler/step_plan.h"
#include "kernels/ops/sample.h"

namespace quire::engine {

// The result of a step for one continuation. The token comes from the request; it is not drawn.
struct ContinuationStep {
  // While tokens are still to be scored, this is the first token of the continuation. When all are
  // scored, this is the last token, with FinishReason::kLength.
  SampledToken token;
  absl::Status status;              // Internal, with kAbort in `token`: a row had no distribution
  std::optional<TokenDelta> delta;  // the whole continuation, once it has ended
};

// A continuation of m tokens has m rows of logits. The first is the row of the last token of the
// prompt. Rows come in the order of positions. Rows that are computed again after a preemption are
// ignored. Not thread-safe; used on the step thread only.
class ContinuationScores {
 public:
  // Adds the score of the token at `index` of a continuation of the request.
  void Add(const Request& request, int32_t continuation, int64_t index,
           absl::StatusOr<kernels::SampledRow> row);
  // Returns the result of sample k, 0 .. num_samples - 1, of the entry. Called after Add of all
  // rows of the entry.
  ContinuationStep Take(const StepPlanEntry& entry, int32_t k);

  void Remove(const Request& request) { scores_.erase(&request); }
  int64_t size() const { return std::ssize(scores_); }

 private:
  struct Scores {
    std::vector<PositionLogprobs> tokens;
    absl::Status status;  // of the first row that had an error
  };
  Scores& Find(const Request& request, int32_t continuation);

  std::unordered_map<const Request*, std::vector<Scores>> scores_;  // by continuation
};

}  // namespace quire::engine
