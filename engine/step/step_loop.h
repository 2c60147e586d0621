#pragma once

// The step thread. It is the only owner of scheduler, cache, model, sampler and output state.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/admission/running_requests.h"
#include "engine/admission/step_channel.h"
#include "engine/disk/disk_fetches.h"
#include "engine/disk/disk_tier.h"
#include "engine/kv/block_manager.h"
#include "engine/load/engine_loader.h"
#include "engine/output/continuation_scores.h"
#include "engine/output/output_processor.h"
#include "engine/runner/runner.h"
#include "engine/scheduler/prefill_pacer.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/engine_metrics.h"
#include "engine/step/last_steps.h"
#include "engine/step/live_requests.h"

namespace quire::engine {

class StepLoop {
 public:
  // All arguments but `config` must outlive the loop. `disk` may be null.
  StepLoop(EngineParts& parts, const EngineConfig& config, DiskTier* disk, StepChannel& channel,
           RunningRequests& running, EngineMetrics& metrics);
  ~StepLoop() { Stop(); }

  // Computes a warm-up token. Called before all other functions.
  absl::Status WarmUp();
  // Starts the thread, which then calls Step repeatedly. Without the thread, the owner calls Step.
  void Start();
  // Runs one step. Returns false if another step would do nothing until some event, such as a new
  // request, happens.
  bool Step();
  // The charges of tenants for blocks. Const functions that take a tenant's name may be called on
  // any thread.
  const TenantCharges& charges() const { return blocks_.charges(); }
  // Ends all running requests with CANCELLED, and joins the thread. Nothing may be sent to the
  // channel afterwards.
  void Stop();
  // Logs the latest steps, of which one may still run. May be called on any thread.
  void LogLastSteps() const { last_steps_.Log(parts_.clock->Now()); }

 private:
  void Run();
  void EndAll();
  // Makes every request end. Steps in flight end those that they hold when they are collected, and
  // the next step ends the others.
  void CancelAll();

  // A plan whose result is not collected yet.
  struct InFlight {
    StepPlan plan;
    absl::Time begin;
    absl::Status status;  // of Runner::Submit
  };

  // A flush of the prefix cache that is not complete yet.
  struct Flush {
    FlushCommand command;
    int64_t num_left = 0;  // blocks still to be freed
    int64_t num_freed = 0;
  };

  // The parts of a step. TakeCommands, FlushSome and Submit begin a step. CompleteOldest ends the
  // oldest step in flight. If that step succeeded, CompleteOldest calls Output, Finish and
  // NoteDuration, in this order.
  void TakeCommands(absl::Time now);
  void Take(AdmittedRequest admitted, absl::Time now);
  void Take(FlushCommand flush, absl::Time now);
  void Take(UnpinCommand unpin, absl::Time now);
  void Take(ForkPinCommand fork, absl::Time now);
  void Take(MapCommand command, absl::Time now);
  // Continues the picture that is asked for. A step that nobody watches does nothing for it.
  void DrawSome();
  // Returns an error if the request would miss its deadline for certain: DeadlineExceeded if it
  // would even alone, and ResourceExhausted if only the prompts before it are the reason.
  // `on_disk`: as for GainFromDisk.
  absl::Status CheckDeadline(const Request& request, const DiskChain* on_disk, absl::Time now);
  // Ends a request that the scheduler never had.
  void Refuse(AdmittedRequest admitted, const absl::Status& status, absl::Time now);
  // False if what was found on disk is of another epoch, or nothing is left to compute.
  bool CanBeRead(const DiskChain& on_disk, const Request& request) const;
  // Returns what the request gets from disk if it waits. `on_disk` is null if it has nothing of its
  // prompt that can be read.
  DiskFetches::Gain GainFromDisk(const Request& request, const DiskChain* on_disk, absl::Time now);
  std::string RootKeyOf(const Request& request) const;
  // Returns true if the request is to wait for blocks from disk. `on_disk`: as for GainFromDisk.
  bool WaitsForDisk(const LiveRequest& live, std::shared_ptr<const DiskChain> on_disk,
                    absl::Time now);
  // Schedules the requests that wait no longer.
  void TakeFromDisk(absl::Time now);
  // Gives the scheduler the samples of a new request that have not ended.
  void Schedule(const LiveRequest& live);
  void Reconsider(const LiveRequest& live, absl::Time now);
  void FlushSome();
  void Submit(StepPlan plan, absl::Time now);
  void CompleteOldest();
  void Output(const StepPlan& plan, absl::Time now);
  // Sends what was queued, and ends the requests whose answers have become too large.
  void Emit(absl::Time now);
  void Finish(const std::vector<FinishedSequence>& finished, absl::Time now);
  void NoteDuration(const InFlight& step, absl::Time now);
  void FailStep(const StepPlan& plan, const absl::Status& status);
  // Called after a step failed. If the device can do nothing any more, logs the latest steps, ends
  // every request, and tells the owner.
  void CheckDevice();
  void UpdateMetrics();

  // Handles the rows of one entry of the plan: result_.rows[first, end).
  void OutputEntry(const StepPlan& plan, int32_t index, size_t first, size_t end, absl::Time now);
  // Sends the log-probabilities of prompt tokens, which come first among the rows [first, end).
  // Returns the index of the first row after them.
  size_t OutputPrompt(LiveRequest& live, size_t first, size_t end);
  void OutputDrawn(const Sequence& sequence, size_t row, absl::Time now);
  // Takes the scores of an entry of a scoring request from scores_, and queues the continuations
  // that have ended. Called once all rows of the entry are in scores_.
  void OutputScores(const StepPlan& plan, int32_t index, absl::Time now);
  // Takes the row of one entry of a beam search. With the row of the last beam, the search goes on.
  void OutputBeam(LiveRequest& live, const Sequence& sequence, size_t row, int32_t num_draws,
                  absl::Time now);
  void QueueAnswers(LiveRequest& live);
  // Takes the verdict on a prompt to pin, from the work of its last row.
  void OutputCheck(LiveRequest& live, size_t row);
  // Returns `status`, the error of a plan entry. If it is Internal and the K or V of the entry are
  // not finite, adds that cause to the message.
  absl::Status WithCause(const absl::Status& status, int32_t entry) const;
  void FinishRequest(LiveRequest& live, absl::Time now);

  // Constant after construction.
  EngineParts& parts_;
  StepChannel& channel_;
  RunningRequests& running_;
  EngineMetrics& metrics_;
  DiskTier* const disk_;  // null: none
  const std::function<void()> on_device_lost_;

  std::atomic<bool> stopping_ = false;
  LastSteps last_steps_;
  std::thread thread_;

  // Step thread only.
  BlockManager blocks_;
  std::optional<DiskFetches> fetches_;  // nothing: there is no disk
  Scheduler scheduler_;
  PrefillPacer pacer_;
  Runner runner_;
  kernels::DeviceCounts counts_at_ready_{};  // what the warm-up made the device do
  std::deque<InFlight> in_flight_;           // oldest first
  OutputProcessor output_;
  ContinuationScores scores_;
  LiveRequests live_;
  std::vector<MapCommand>
      map_commands_;                     // that wait for a picture; the channel bounds their number
  std::shared_ptr<const CacheMap> map_;  // the latest picture
  absl::Time map_time_ = absl::InfinitePast();  // when it was begun
  std::deque<Flush> flushes_;                   // oldest first; the channel bounds their number

  // Scratch of one step, kept for its capacity.
  std::vector<StepCommand> commands_;
  std::vector<std::shared_ptr<const Request>> noticed_;
  StepResult result_;
  SampledTokens sampled_;
};

}  // namespace quire::engine
