#pragma once

// The step thread. It is the only owner of scheduler, cache, model, sampler and output state.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/admission/admission_queue.h"
#include "engine/admission/running_requests.h"
#include "engine/batch/batch_builder.h"
#include "engine/engine_loader.h"
#include "engine/engine_metrics.h"
#include "engine/kv/block_manager.h"
#include "engine/live_requests.h"
#include "engine/output/continuation_scores.h"
#include "engine/output/output_processor.h"
#include "engine/sampling/sampler.h"
#include "engine/scheduler/prefill_pacer.h"
#include "engine/scheduler/scheduler.h"

namespace quire::engine {

class StepLoop {
 public:
  // Borrows all arguments. All but `config` must outlive the loop.
  StepLoop(EngineParts& parts, const EngineConfig& config, AdmissionQueue& admission,
           RunningRequests& running, EngineMetrics& metrics);
  ~StepLoop() { Stop(); }

  // Computes a warm-up token. Called before all other functions.
  absl::Status WarmUp();
  // Starts the thread, which then calls Step repeatedly. Without the thread, the owner calls Step.
  void Start();
  // Runs one step. Returns false when another step would do nothing before some event, such as a
  // new request.
  bool Step();
  // Ends all running requests with CANCELLED, and joins the thread. Nothing may be pushed to the
  // admission queue afterwards.
  void Stop();

 private:
  void Run();
  void EndAll();

  // The parts of a step. A step that succeeds runs Admit, NoteScheduled, Forward, Sample, Output,
  // Finish and NoteDuration, in this order.
  void Admit(absl::Time now);
  void Reconsider(const LiveRequest& live, absl::Time now);
  void NoteScheduled(const StepPlan& plan, absl::Time now);
  void NoteDuration(const StepPlan& plan, absl::Duration elapsed);
  absl::Status Forward(const StepPlan& plan, kernels::TensorView& logits);
  void Sample(const StepPlan& plan, const kernels::TensorView& logits);
  void Output(const StepPlan& plan, absl::Time now);
  void Finish(const std::vector<FinishedSequence>& finished, absl::Time now);
  void FailStep(const StepPlan& plan, const absl::Status& status);
  void UpdateMetrics();

  // Returns one row of logits, with every id of the vocabulary of the model, padding included.
  std::span<const float> LogitRow(const kernels::TensorView& logits, int64_t row) const;
  // OutputDrawn handles an entry that drew tokens. OutputScored handles an entry of a scoring
  // request.
  void OutputDrawn(const StepPlanEntry& entry, int64_t plan_index, size_t first_row,
                   absl::Time now);
  void OutputScored(const StepPlanEntry& entry, int64_t plan_index, absl::Time now);
  // Returns `status`, the error of a plan entry. If it is Internal and the K or V of the entry are
  // not finite, adds that cause to the message.
  absl::Status WithCause(const absl::Status& status, int64_t plan_index) const;
  // Describes the K or V values of one sequence of `input` that are not finite. Returns an empty
  // string when all are finite.
  std::string WhyNotFinite(const ModelInput& input, int64_t seq) const;
  void PutPromptLogprobs(const StepPlanEntry& entry, const kernels::TensorView& logits,
                         int64_t first_row);
  void FinishRequest(LiveRequest& live, absl::Time now);

  // Constant after construction.
  EngineParts& parts_;
  AdmissionQueue& admission_;
  RunningRequests& running_;
  EngineMetrics& metrics_;

  std::atomic<bool> stopping_ = false;
  std::thread thread_;

  // Step thread only.
  BlockManager blocks_;
  Scheduler scheduler_;
  PrefillPacer pacer_;
  BatchBuilder builder_;
  Sampler sampler_;
  const ParallelFor parallel_for_;
  OutputProcessor output_;
  ContinuationScores scores_;
  LiveRequests live_;

  // Scratch of one step, kept for its capacity.
  ModelInput input_;
  std::vector<AdmittedRequest> admitted_;
  std::vector<std::shared_ptr<const Request>> noticed_;
  std::vector<SampleRow> rows_;
  std::vector<absl::StatusOr<SampledRow>> drawn_;
  SampledTokens sampled_;
};

}  // namespace quire::engine
