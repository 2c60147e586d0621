#pragma once

// Executes the plans of steps: builds the input of the model, runs the model, and handles the rows
// of logits.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "engine/batch/batch_builder.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/model.h"
#include "engine/runner/row_work.h"
#include "engine/sampling/sampler.h"
#include "kernels/backend.h"

namespace quire::engine {

struct StepResult {
  std::vector<RowWork> works;
  std::vector<absl::StatusOr<SampledRow>> rows;  // rows[i] is the result of works[i]
};

// The times of two steps of one sequence.
struct WarmUpTimes {
  absl::Duration prompt;  // of a chunk of a prompt
  absl::Duration decode;
};

// To be used only on the step thread.
class Runner {
 public:
  // All references must outlive the runner.
  Runner(kernels::Backend& backend, Model& model, KvCache& cache, const BlockManager& blocks,
         Sampler sampler);

  // Runs every kernel once and reads every page of the weights. Computes `tokens` as a chunk of a
  // prompt, in the blocks from block 0 on, which no sequence may own yet.
  absl::StatusOr<WarmUpTimes> WarmUp(const std::vector<int32_t>& tokens, const base::Clock& clock);

  // Runs one step. An error means that no row has a result. `result` is overwritten.
  absl::Status Run(const StepPlan& plan, StepResult& result);

  // Describes the K or V values of an entry of the last plan that are not finite. Returns an empty
  // string when all are finite.
  std::string WhyNotFinite(int32_t entry) const { return WhyNotFinite(input_, entry); }

 private:
  std::string WhyNotFinite(const ModelInput& input, int64_t seq) const;
  void HandleRows(const StepPlan& plan, const kernels::TensorView& logits, StepResult& result);

  kernels::Backend& backend_;
  Model& model_;
  KvCache& cache_;
  const BatchBuilder builder_;
  Sampler sampler_;
  const ParallelFor parallel_for_;

  // Of one step, kept for their capacity.
  ModelInput input_;
  std::vector<SampleRow> sample_rows_;
};

}  // namespace quire::engine
