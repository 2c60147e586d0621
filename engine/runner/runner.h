#pragma once

// Executes the plans of steps: builds the input of the model, runs the model, and handles the rows
// of logits.

#include <array>
#include <cstdint>
#include <memory>
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
#include "kernels/backend.h"

namespace quire::engine {

struct StepResult {
  // The device's time from the end of the step that was collected before to the end of this one.
  // InfiniteDuration if unknown.
  absl::Duration since_previous = absl::InfiniteDuration();
  std::vector<RowWork> works;
  std::vector<absl::StatusOr<kernels::SampledRow>> rows;  // rows[i] is the result of works[i]
};

// The times of steps of one sequence.
struct WarmUpTimes {
  absl::Duration prompt;  // of a chunk of a prompt
  absl::Duration decode;
  int32_t num_verified = 1;  // the tokens of a decode with drafts; 1 if there are no drafts
  absl::Duration verified;   // and its time
};

// Submit enqueues a plan, and Collect waits for its result. At pipeline depth 0 each plan is
// collected before the next is submitted. At depth 1 the next plan may be submitted before the
// previous one is collected, so that the device has work while the host handles a result. The next
// plan may then name tokens that only the device knows.
//
// To be used only on the step thread.
class Runner {
 public:
  // All references must outlive the runner.
  Runner(kernels::Backend& backend, Model& model, kernels::PreparedSampler& sampler, KvCache& cache,
         const StepLimits& limits, const BlockManager& blocks);
  ~Runner();

  // Allocates memory, runs a few steps and returns the times of two of them. Called before all
  // other functions. The steps compute `tokens` as a chunk of a prompt, and tokens[0] as a decode.
  // They overwrite cache blocks from block 0 on, so no sequence may hold blocks yet.
  absl::StatusOr<WarmUpTimes> WarmUp(const std::vector<int32_t>& tokens, const base::Clock& clock);

  // Enqueues a step. After an error, the plan has no result, and Collect must not be called for it.
  // Otherwise the sequences of the plan must live until its result is collected.
  absl::Status Submit(const StepPlan& plan);
  // Waits for the oldest step and overwrites `result`. An error means that no row has a result.
  absl::Status Collect(StepResult& result);

  // The prefixes that decodes have shared since the start, and the keys that this saved.
  int64_t num_shared_prefixes() const { return builder_.num_shared_prefixes(); }
  int64_t num_saved_keys() const { return builder_.num_saved_keys(); }

  // Describes the K or V values that are not finite, for one entry of the plan that was collected
  // last. Returns an empty string when all values are finite.
  std::string WhyNotFinite(int32_t entry) const;

 private:
  // The data of one step. The step after the next reuses the memory.
  struct Slot;

  absl::Status WarmUpEverySize(int32_t token);
  absl::Status Enqueue(const StepPlan& plan, Slot& slot);
  void AddSampleRows(const StepPlan& plan, Slot& slot);
  // Enqueues the forward pass of slot.input and the work of slot.sample_rows.
  absl::Status ForwardAndSample(Slot& slot);
  std::string WhyNotFinite(const ModelInput& input, int64_t seq) const;

  kernels::Backend& backend_;
  Model& model_;
  kernels::PreparedSampler& sampler_;
  KvCache& cache_;
  const StepLimits limits_;
  const int64_t least_saved_keys_;  // of a step in which decodes share keys; 0: they never do
  BatchBuilder builder_;

  std::array<std::unique_ptr<Slot>, 2> slots_;
  int64_t num_submitted_ = 0, num_collected_ = 0;
  std::unique_ptr<kernels::Event> last_done_;  // the mark of the step that was collected last
  // The tokens that the last step drew, int32 [limits.max_logit_rows] in the backend's memory.
  kernels::DeviceBuffer drawn_memory_;
  kernels::TensorView drawn_;
};

}  // namespace quire::engine
