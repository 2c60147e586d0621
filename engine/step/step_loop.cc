#include "engine/step/step_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/kv/kv_budget.h"

namespace quire::engine {
namespace {

// The longest sleep of the step thread when nothing runs and nothing is due.
constexpr absl::Duration kIdleWait = absl::Seconds(1);

// The most blocks that a flush frees in one step: about 0.1 ms of work.
constexpr int64_t kFlushedPerStep = 512;

// The most blocks and roots that a picture of the cache visits in one step, and how long a picture
// serves those who ask for one.
constexpr int32_t kMappedPerStep = 256;
constexpr absl::Duration kMapAge = absl::Milliseconds(250);

BlockManagerConfig BlocksOf(const EngineParts& parts, DiskTier* disk) {
  BlockManagerConfig config = BlockConfigFor(parts.cache.groups(), parts.limits.block_size,
                                             parts.limits.max_tokens, parts.limits.pipeline_depth);
  config.spill = disk == nullptr ? nullptr : &disk->spill();
  return config;
}

absl::Status EndStatus(EndCause cause, bool device_is_lost) {
  switch (cause) {
    case EndCause::kFinished:
      return absl::OkStatus();
    case EndCause::kCancelled:
      return device_is_lost ? absl::UnavailableError(
                                  "the device is lost, and the server ends: send the request "
                                  "again, to another server or later")
                            : CancelledStatus();
    case EndCause::kDeadline:
      return PastDeadlineStatus();
    case EndCause::kStalled:
      return absl::ResourceExhaustedError(
          "the stream's reader was too slow: nothing was read for --stalled_stream_timeout");
    case EndCause::kFailed:
      return absl::InternalError(
          "the step that computed this request failed; see the server's log");
  }
  return absl::InternalError("a sequence ended for no known cause");
}

}  // namespace

StepLoop::StepLoop(EngineParts& parts, const EngineConfig& config, DiskTier* disk,
                   StepChannel& channel, RunningRequests& running, EngineMetrics& metrics)
    : parts_(parts),
      channel_(channel),
      running_(running),
      metrics_(metrics),
      disk_(disk),
      on_device_lost_(config.on_device_lost),
      blocks_(BlocksOf(parts, disk)),
      scheduler_({.model = parts.model_info.name,
                  .cache_epoch = disk == nullptr ? 0 : disk->epoch(),
                  .max_num_seqs = static_cast<int32_t>(parts.limits.max_seqs),
                  .max_num_batched_tokens = static_cast<int32_t>(parts.limits.max_tokens),
                  .prefill_limit = [this](int32_t decodes) { return pacer_.limit(decodes); },
                  .max_logit_rows =
                      static_cast<int32_t>(parts.limits.max_logit_rows - parts.limits.max_seqs),
                  .max_draft_tokens = parts.limits.max_draft_tokens,
                  .row_share = [this](int32_t rows) { return pacer_.DecodeShare(rows); },
                  .pipeline_depth = parts.limits.pipeline_depth,
                  .stalled_stream_timeout = config.stalled_stream_timeout},
                 blocks_),
      pacer_(config.max_step_time, static_cast<int32_t>(parts.limits.max_tokens)),
      runner_(*parts.backend, *parts.model, *parts.sampler, parts.cache, parts.limits, blocks_),
      output_(*parts.tokenizer),
      live_(metrics, *parts.tokenizer) {
  if (disk != nullptr) {
    fetches_.emplace(*disk, blocks_,
                     [this](int64_t num_tokens) { return pacer_.LeastTime(num_tokens, 0); });
  }
}

void StepLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void StepLoop::Stop() {
  stopping_.store(true, std::memory_order_release);
  channel_.Wake();
  if (thread_.joinable()) thread_.join();
  EndAll();
}

// Runs the warm-up steps. Their times are the first that the pacer learns.
absl::Status StepLoop::WarmUp() {
  const auto chunk =
      static_cast<int32_t>(std::min<int64_t>(parts_.limits.max_tokens, parts_.limits.block_size));
  const std::vector<int32_t> tokens(chunk, std::max(parts_.tokenizer->bos_id(), 0));
  ASSIGN_OR_RETURN(const WarmUpTimes times, runner_.WarmUp(tokens, *parts_.clock));
  pacer_.NoteStep(chunk, 0, times.prompt);
  pacer_.NoteStep(0, 1, times.decode);
  if (times.num_verified > 1) {
    pacer_.NoteDecodes(times.decode, times.num_verified, times.verified);
  }
  counts_at_ready_ = parts_.backend->counts();
  UpdateMetrics();
  return absl::OkStatus();
}

void StepLoop::Run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    if (Step()) continue;
    const absl::Time now = parts_.clock->Now();
    absl::Time next = scheduler_.NextWakeup();
    if (fetches_) next = std::min(next, fetches_->NextWakeup(now));
    channel_.WaitForWork(std::min(kIdleWait, next - now));
  }
}

void StepLoop::EndAll() {
  TakeCommands(parts_.clock->Now());
  CancelAll();
  while (Step() || !live_.empty()) {
  }
}

void StepLoop::CancelAll() {
  live_.ForEach([this](const LiveRequest& live) {
    live.request->cancelled.store(true, std::memory_order_release);
    Reconsider(live, parts_.clock->Now());
  });
}

// If this submits a plan, leaves at most pipeline_depth steps in flight. Otherwise completes all
// steps.
bool StepLoop::Step() {
  const base::Busy busy(metrics_.step);
  metrics_.step_sequences.Set(0);
  metrics_.step_tokens.Set(0);
  TakeCommands(parts_.clock->Now());
  if (fetches_) TakeFromDisk(parts_.clock->Now());
  FlushSome();
  if (!map_commands_.empty()) DrawSome();
  const absl::Time now = parts_.clock->Now();
  const int64_t preemptions = scheduler_.stats().num_preemptions;
  StepPlan plan = scheduler_.Schedule(now);
  const std::vector<FinishedSequence> dropped = scheduler_.TakeDropped();
  Finish(dropped, now);
  const bool planned = !plan.empty();
  // True if blocks were released. The next plan can use them.
  const bool gave_back = !dropped.empty() || scheduler_.stats().num_preemptions > preemptions;
  if (planned) Submit(std::move(plan), now);
  const size_t num_to_leave = planned ? parts_.limits.pipeline_depth : 0;
  const bool completes = in_flight_.size() > num_to_leave;
  while (in_flight_.size() > num_to_leave) CompleteOldest();
  return planned || gave_back || completes || !flushes_.empty() || !map_commands_.empty();
}

void StepLoop::TakeCommands(absl::Time now) {
  commands_.clear();
  channel_.Drain(commands_, noticed_);
  for (StepCommand& command : commands_) {
    std::visit([&](auto& taken) { Take(std::move(taken), now); }, command);
  }
  for (const std::shared_ptr<const Request>& request : noticed_) {
    if (const LiveRequest* const live = live_.Find(*request)) Reconsider(*live, now);
  }
  noticed_.clear();  // noticed_ must not keep ended requests alive
}

void StepLoop::Take(FlushCommand flush, absl::Time) {
  scheduler_.ForgetCached();
  if (disk_ != nullptr) disk_->Forget(scheduler_.cache_epoch());
  int64_t num_left = blocks_.stats().num_cached;
  for (const Flush& earlier : flushes_) num_left -= earlier.num_left;
  flushes_.push_back({.command = std::move(flush), .num_left = std::max(num_left, int64_t{0})});
}

void StepLoop::Take(UnpinCommand unpin, absl::Time) {
  if (blocks_.IsPinned(unpin.pin)) scheduler_.Unpin(unpin.pin);  // a session may hold nothing
  UpdateMetrics();
  std::move(unpin.done)();
}

void StepLoop::Take(ForkPinCommand fork, absl::Time) {
  for (const std::shared_ptr<SessionPin>& pin : fork.pins) {
    if (!blocks_.TryPinFork(pin->id, fork.from, fork.tokens)) continue;
    pin->num_tokens.store(std::ssize(fork.tokens), std::memory_order_release);
  }
  UpdateMetrics();
  std::move(fork.done)();
}

void StepLoop::Take(MapCommand command, absl::Time now) {
  if (map_ != nullptr && now - map_time_ < kMapAge) return std::move(command.done)(map_);
  const bool is_first = map_commands_.empty();
  map_commands_.push_back(std::move(command));
  if (!is_first) return;
  map_time_ = now;
  blocks_.BeginMap();
}

void StepLoop::DrawSome() {
  std::shared_ptr<const CacheMap> whole = blocks_.ContinueMap(kMappedPerStep);
  if (whole == nullptr) return;
  map_ = std::move(whole);
  std::vector<MapCommand> commands;
  commands.swap(map_commands_);
  for (MapCommand& command : commands) {
    Completion<std::shared_ptr<const CacheMap>> done = std::move(command.done);
    { const CommandPlace place = std::move(command.place); }
    std::move(done)(map_);
  }
}

// Every step frees a bounded number of blocks, so that streams go on during a flush.
void StepLoop::FlushSome() {
  if (flushes_.empty()) return;
  Flush& flush = flushes_.front();
  const int64_t num_freed = blocks_.FreeCached(std::min(flush.num_left, kFlushedPerStep));
  flush.num_freed += num_freed;
  flush.num_left -= num_freed;
  if (flush.num_left > 0 && num_freed == kFlushedPerStep) return;
  UpdateMetrics();
  Completion<int64_t> done = std::move(flush.command.done);
  const int64_t total = flush.num_freed;
  flushes_.pop_front();  // releases the command's place before the sender gets the answer
  if (disk_ == nullptr) return std::move(done)(total);
  disk_->Flush([done = std::move(done), total](const absl::Status& status) mutable {
    if (status.ok()) return std::move(done)(total);
    std::move(done)(absl::UnavailableError(absl::StrCat(
        "kv_disk_dir: what it holds is forgotten, but may be found again after a restart: ",
        status.message())));
  });
}

void StepLoop::Reconsider(const LiveRequest& live, absl::Time now) {
  // The scheduler ends what is cancelled.
  const bool is_cancelled = live.request->cancelled.load(std::memory_order_acquire);
  if (is_cancelled && fetches_ && fetches_->StopWaiting(*live.request, now)) Schedule(live);
  for (int32_t k = 0; k < live.request->params.sampling.num_samples(); ++k) {
    scheduler_.Reconsider(live.first_id + k, now);
  }
}

void StepLoop::Submit(StepPlan plan, absl::Time now) {
  metrics_.step_sequences.Set(std::ssize(plan.entries));
  metrics_.step_tokens.Set(plan.num_tokens);
  for (const StepPlanEntry& entry : plan.entries) live_.NoteScheduled(*entry.sequence, now);
  // WaitUntilIdle of running_ also waits for steps in flight. At pipeline depth 0 no step is in
  // flight when a request ends, so running_ is not told.
  if (in_flight_.empty() && parts_.limits.pipeline_depth > 0) running_.SetStepsInFlight(true);
  InFlight& step = in_flight_.emplace_back();
  step.plan = std::move(plan);
  step.begin = now;
  last_steps_.Note(step.plan, now);
  step.status = runner_.Submit(step.plan);
}

void StepLoop::CompleteOldest() {
  InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (step.status.ok()) step.status = runner_.Collect(result_);
  if (step.status.ok()) {
    Output(step.plan, parts_.clock->Now());
    metrics_.failed_steps.Set(0);
    Finish(scheduler_.Complete(step.plan, sampled_), parts_.clock->Now());
    NoteDuration(step, parts_.clock->Now());
  } else {
    base::Log(base::LogLevel::kError, "engine", "a step failed",
              {{"status", step.status.ToString()}, {"tokens", step.plan.num_tokens}});
    CheckDevice();  // first, so that probes know of a loss before clients do
    FailStep(step.plan, step.status);
  }
  scheduler_.Recycle(std::move(step.plan));
  if (in_flight_.empty() && parts_.limits.pipeline_depth > 0) running_.SetStepsInFlight(false);
#ifndef NDEBUG
  scheduler_.CheckInvariants();  // after each step of every test
#endif
}

// Tells the pacer the duration of `step`, whose result is in result_. If the step was submitted
// while the previous step ran, it began when the previous step ended on the device.
void StepLoop::NoteDuration(const InFlight& step, absl::Time now) {
  int32_t decodes = 0;
  for (const StepPlanEntry& entry : step.plan.entries) {
    // A drafted token has a row of logits too, and takes as long as a decode.
    decodes += entry.num_own_tokens() == 1 ? entry.num_tokens : 0;
  }
  pacer_.NoteStep(static_cast<int32_t>(step.plan.num_tokens) - decodes, decodes,
                  std::min(now - step.begin, result_.since_previous));
}

void StepLoop::CheckDevice() {
  const absl::Status status = parts_.backend->Synchronize();
  if (status.ok() || metrics_.device_lost.value() != 0) return;
  metrics_.device_lost.Set(1);
  base::Log(base::LogLevel::kError, "engine", "the device is lost: every request fails",
            {{"status", status.ToString()}, {"steps_in_flight", std::ssize(in_flight_)}});
  LogLastSteps();
  CancelAll();
  if (on_device_lost_) on_device_lost_();
}

void StepLoop::FailStep(const StepPlan& plan, const absl::Status& status) {
  metrics_.steps_failed.Add(1);
  metrics_.failed_steps.Add(1);
  metrics_.since_failure.Begin();
  for (const StepPlanEntry& entry : plan.entries) {
    if (entry.sequence->finish_reason == FinishReason::kNone) {
      live_.Of(*entry.sequence).status = status;
    }
  }
  Finish(scheduler_.Fail(plan), parts_.clock->Now());
}

void StepLoop::Emit(absl::Time now) {
  for (const LiveRequest* live : live_.Emit()) {
    live->request->cancelled.store(true, std::memory_order_release);
    Reconsider(*live, now);
  }
}

void StepLoop::Finish(const std::vector<FinishedSequence>& finished, absl::Time now) {
  // The metrics are updated before Emit. So once a client has read its last token, they count this
  // token and the released blocks.
  UpdateMetrics();
  Emit(now);
  for (const FinishedSequence& end : finished) {
    const Sequence& sequence = *end.sequence;
    LiveRequest& live = live_.Of(sequence);
    live.summary.usage.recomputed_tokens += sequence.num_recomputed;
    live.summary.usage.num_preemptions += sequence.num_preemptions;
    live.summary.usage.block_copies += sequence.num_copies;
    // Until the prompt is computed, one sequence stands for all samples of its request.
    const int32_t num_ended = live.forked ? 1 : live.num_left;
    for (int32_t k = 0; k < num_ended; ++k) {
      if (end.cause != EndCause::kFinished) {
        live_.Put(live, output_.Cut(sequence.id + k, FinishReason::kAbort).delta);
      }
      output_.Remove(sequence.id + k);
      if (live.request->pins == kNoPin) {
        metrics_.finished_by_reason[static_cast<size_t>(sequence.finish_reason)].Add(1);
      }
    }
    if (const PinId pin = live.request->pins; pin != kNoPin && end.cause == EndCause::kFinished) {
      if (blocks_.IsPinned(pin)) {
        const std::span<const int32_t> ids = blocks_.TableOfPin(pin);
        live.request->pinned_ids.assign(ids.begin(), ids.end());
      } else {
        live.status = absl::ResourceExhaustedError(
            "the prefix was computed, but the layers with a window have no room to keep it: try "
            "later");
      }
    }
    if (end.cause != EndCause::kFinished) {
      if (live.status.ok()) live.status = EndStatus(end.cause, metrics_.device_lost.value() != 0);
      // The other samples of the request end too.
      live.request->cancelled.store(true, std::memory_order_release);
      Reconsider(live, now);
    }
    live.num_left -= num_ended;
    if (live.num_left == 0) FinishRequest(live, now);
  }
}

void StepLoop::FinishRequest(LiveRequest& live, absl::Time now) {
  const LiveRequest ended = live_.Take(live, now);
  scores_.Remove(*ended.request);
  // UpdateMetrics comes before Erase: once running_ is empty, the metrics kept_* are already 0.
  UpdateMetrics();
  running_.Erase(*ended.request);
  ended.request->sink->Finish(ended.status, ended.summary);
}

void StepLoop::UpdateMetrics() {
  const SchedulerStats scheduler = scheduler_.stats();
  const BlockStats blocks = blocks_.stats();
  metrics_.num_running.Set(scheduler.num_running);
  // scheduler.num_waiting counts a request that has not started as one sequence. These requests
  // are subtracted, because Stats::num_waiting counts them already, by their admission tickets.
  const int64_t num_unscheduled = fetches_ ? fetches_->num_waiting() : 0;
  metrics_.num_preempted.Set(
      std::max<int64_t>(0, scheduler.num_waiting + num_unscheduled - live_.num_unstarted()));
  metrics_.blocks_free.Set(blocks.num_free);
  metrics_.blocks_cached.Set(blocks.num_cached);
  metrics_.blocks_held.Set(blocks.num_held);
  metrics_.blocks_pinned.Set(blocks.num_pinned);
  metrics_.cache_roots.Set(blocks.num_roots);
  metrics_.kept_requests.Set(live_.size());
  metrics_.kept_sequences.Set(scheduler.num_waiting + scheduler.num_running);
  metrics_.kept_outputs.Set(output_.size());
  metrics_.kept_scores.Set(scores_.size());
  metrics_.kept_tenants.Set(scheduler.num_tenants);
  metrics_.prompt_tokens_computed.Set(scheduler.prompt_tokens_computed);
  metrics_.prompt_tokens_cached.Set(scheduler.prompt_tokens_cached);
  metrics_.scored_tokens.Set(scheduler.scored_tokens);
  metrics_.recomputed_tokens.Set(scheduler.recomputed_tokens);
  metrics_.drafted_tokens.Set(scheduler.drafted_tokens);
  metrics_.accepted_tokens.Set(scheduler.accepted_tokens);
  metrics_.drafts_expected.Set(static_cast<int64_t>(scheduler.drafts_expected));
  metrics_.drafts_price.Set(static_cast<int64_t>(scheduler.drafts_price));
  metrics_.block_copies.Set(blocks.num_copies);
  metrics_.beam_copies.Set(scheduler.beam_copies);
  metrics_.preemptions.Set(scheduler.num_preemptions);
  for (size_t i = 0; i < scheduler.followers.size(); ++i) {
    metrics_.followers[i].Set(scheduler.followers[i]);
  }
  metrics_.steps.Set(scheduler.num_steps);
  metrics_.shared_prefixes.Set(runner_.num_shared_prefixes());
  metrics_.saved_keys.Set(runner_.num_saved_keys());
  const kernels::DeviceCounts counts = parts_.backend->counts();
  for (size_t i = 0; i < counts.size(); ++i)
    metrics_.device[i].Set(counts[i] - counts_at_ready_[i]);
}

}  // namespace quire::engine
