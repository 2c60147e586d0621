#pragma once

// Scoring requests: collects the log-probabilities of each continuation's tokens, row by row.

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

// A step's result for one continuation: the given token instead of a drawn one.
struct ContinuationStep {
  SampledToken token;               // its first, or with a finish reason its last
  absl::Status status;              // Internal, with kAbort: a row had no distribution
  std::optional<TokenDelta> delta;  // the whole continuation, once it has ended
};

// A continuation of m tokens has m rows; the first is that of the prompt's last token. Rows come in
// the order of positions; those computed again after a preemption are left out. Not thread-safe;
// lives on the step thread.
class ContinuationScores {
 public:
  // The logits of one of a plan entry's rows, 0 .. num_logit_rows - 1.
  using RowOf = std::function<std::span<const float>(int32_t row)>;

  // Records the rows of an entry of a scoring request; they must stay valid until Compute.
  void AddRows(const StepPlanEntry& entry, const RowOf& row_of);
  // Computes their log-probabilities: the same bits whatever else the step held.
  void Compute(const ParallelFor& parallel_for);
  // The result of the entry's sample k of num_samples, after Compute.
  ContinuationStep Take(const StepPlanEntry& entry, int32_t k);

  void Remove(const Request& request) { scores_.erase(&request); }
  int64_t size() const { return std::ssize(scores_); }

 private:
  struct Row {
    std::span<const float> logits;
    int32_t target = 0;
    std::vector<PositionLogprobs>* scores = nullptr;  // destination of the result
  };
  // One list for each continuation.
  std::vector<std::vector<PositionLogprobs>>& Find(const Request& request);
  void AddRow(std::span<const float> logits, const Request& request, int32_t sample, int64_t index);

  std::unordered_map<const Request*, std::vector<std::vector<PositionLogprobs>>> scores_;
  std::vector<Row> rows_;  // of this step
  std::vector<PositionLogprobs> results_;
};

}  // namespace quire::engine
