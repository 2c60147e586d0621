#pragma once

// Collects the results of scoring requests: the log-probability of each token of each continuation,
// row by row.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"

#include "engine/request/request.h"
#include "engine/sampling/sampler.h"
#include "engine/scheduler/step_plan.h"

namespace quire::engine {

// The result of a step for one continuation. The request gives the token; it is not drawn.
struct ContinuationStep {
  // The first token of the continuation. With FinishReason::kLength, the last token.
  SampledToken token;
  absl::Status status;              // Internal, with kAbort in `token`: a row had no distribution
  std::optional<TokenDelta> delta;  // the whole continuation, once it has ended
};

// A continuation of m tokens has m rows of logits. The first is the row of the last token of the
// prompt. Rows come in the order of positions. Rows that are computed again after a preemption are
// left out. Not thread-safe; used on the step thread only.
class ContinuationScores {
 public:
  // Returns the logits of one row of a plan entry, 0 .. num_logit_rows - 1.
  using RowOf = std::function<std::span<const float>(int32_t row)>;

  // Records the rows of an entry of a scoring request. The logits must stay valid until Compute.
  void AddRows(const StepPlanEntry& entry, const RowOf& row_of);
  // Computes the log-probabilities of the recorded rows. Their bits do not depend on the rest of
  // the step.
  void Compute(const ParallelFor& parallel_for);
  // Returns the result of sample k, 0 .. num_samples - 1, of the entry. Called after Compute.
  ContinuationStep Take(const StepPlanEntry& entry, int32_t k);

  void Remove(const Request& request) { scores_.erase(&request); }
  int64_t size() const { return std::ssize(scores_); }

 private:
  struct Row {
    std::span<const float> logits;
    int32_t target = 0;
    std::vector<PositionLogprobs>* scores = nullptr;  // destination of the result
  };
  // Returns one list of scores for each continuation of the request.
  std::vector<std::vector<PositionLogprobs>>& Find(const Request& request);
  void AddRow(std::span<const float> logits, const Request& request, int32_t sample, int64_t index);

  std::unordered_map<const Request*, std::vector<std::vector<PositionLogprobs>>> scores_;
  std::vector<Row> rows_;  // rows recorded in this step
  std::vector<PositionLogprobs> results_;
};

}  // namespace quire::engine
