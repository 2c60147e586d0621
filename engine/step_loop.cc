#include "engine/step_loop.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/logging.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "engine/batch/lone_input.h"
#include "engine/kv/kv_budget.h"
#include "engine/kv/kv_check.h"
#include "engine/sampling/logprobs.h"

namespace quire::engine {
namespace {

// The longest sleep of the step thread when nothing runs and nothing is due.
constexpr absl::Duration kIdleWait = absl::Seconds(1);

absl::Status EndStatus(EndCause cause) {
  switch (cause) {
    case EndCause::kFinished:
      return absl::OkStatus();
    case EndCause::kCancelled:
      return CancelledStatus();
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

StepLoop::StepLoop(EngineParts& parts, const EngineConfig& config, AdmissionQueue& admission,
                   RunningRequests& running, EngineMetrics& metrics)
    : parts_(parts),
      admission_(admission),
      running_(running),
      metrics_(metrics),
      blocks_(
          BlockConfigFor(parts.cache.groups(), parts.limits.block_size, parts.limits.max_tokens)),
      scheduler_({.model = parts.model_info.name,
                  .max_num_seqs = static_cast<int32_t>(parts.limits.max_seqs),
                  .max_num_batched_tokens = static_cast<int32_t>(parts.limits.max_tokens),
                  .prefill_limit = [this](int32_t decodes) { return pacer_.limit(decodes); },
                  .max_logit_rows =
                      static_cast<int32_t>(parts.limits.max_logit_rows - parts.limits.max_seqs),
                  .stalled_stream_timeout = config.stalled_stream_timeout},
                 blocks_),
      pacer_(config.max_step_time, static_cast<int32_t>(parts.limits.max_tokens)),
      builder_(blocks_),
      sampler_(static_cast<int32_t>(parts.model->config().vocab_size), parts.tokenizer->end_ids(),
               std::max(1, parts.backend->info().num_threads),
               parts.tokenizer->IdsWithoutPiece(parts.model->config().vocab_size)),
      parallel_for_(
          [&backend = *parts.backend](int64_t n, const std::function<void(int64_t)>& work) {
            backend.RunOnHost(n, work);
          }),
      output_(*parts.tokenizer),
      live_(metrics) {}

void StepLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void StepLoop::Stop() {
  stopping_.store(true, std::memory_order_release);
  admission_.Wake();
  if (thread_.joinable()) thread_.join();
  EndAll();
}

// Runs every kernel once and reads every page of the weights before the server is ready. The first
// forward pass is slow because it reads these pages. The times of the two later passes are the
// first that the pacer learns.
absl::Status StepLoop::WarmUp() {
  const auto chunk =
      static_cast<int32_t>(std::min<int64_t>(parts_.limits.max_tokens, parts_.limits.block_size));
  // Both inputs use block 0, before any sequence owns it.
  const std::vector<int32_t> tokens(chunk, std::max(parts_.tokenizer->bos_id(), 0));
  const ModelInput prompt = MakeLoneInput(tokens, 0, 1, parts_.cache);
  const ModelInput decode = MakeLoneInput(std::span(tokens).first(1), 0, 1, parts_.cache);
  // This pass is not timed, because the first forward pass is slower than the later ones.
  ASSIGN_OR_RETURN(const kernels::TensorView logits, parts_.model->Forward(decode, parts_.cache));
  if (!std::ranges::all_of(LogitRow(logits, 0), [](float x) { return std::isfinite(x); })) {
    base::Log(base::LogLevel::kWarning, "engine", "the warm-up's logits are not finite",
              {{"because", WhyNotFinite(decode, 0)}});
  }
  const auto time = [this](const ModelInput& input) -> absl::StatusOr<absl::Duration> {
    const absl::Time begin = parts_.clock->Now();
    RETURN_IF_ERROR(parts_.model->Forward(input, parts_.cache).status());
    return parts_.clock->Now() - begin;
  };
  ASSIGN_OR_RETURN(const absl::Duration prompt_time, time(prompt));
  pacer_.NoteStep(chunk, 0, prompt_time);
  ASSIGN_OR_RETURN(const absl::Duration decode_time, time(decode));
  pacer_.NoteStep(0, 1, decode_time);
  UpdateMetrics();
  return absl::OkStatus();
}

void StepLoop::Run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    if (Step()) continue;
    admission_.WaitForWork(std::min(kIdleWait, scheduler_.NextWakeup() - parts_.clock->Now()));
  }
}

void StepLoop::EndAll() {
  Admit(parts_.clock->Now());
  live_.ForEach([this](const LiveRequest& live) {
    live.request->cancelled.store(true, std::memory_order_release);
    Reconsider(live, parts_.clock->Now());
  });
  while (Step() || !live_.empty()) {
  }
}

// The depth of the pipeline is 0: the results of a step are collected before the next step is
// planned.
bool StepLoop::Step() {
  const base::Busy busy(metrics_.step);
  metrics_.step_sequences.Set(0);
  metrics_.step_tokens.Set(0);
  Admit(parts_.clock->Now());
  const absl::Time begin = parts_.clock->Now();
  const int64_t preemptions = scheduler_.stats().num_preemptions;
  StepPlan plan = scheduler_.Schedule(begin);
  const std::vector<FinishedSequence> dropped = scheduler_.TakeDropped();
  Finish(dropped, begin);
  const bool planned = !plan.empty();
  // True if blocks were released. The next plan can use them.
  const bool gave_back = !dropped.empty() || scheduler_.stats().num_preemptions > preemptions;
  if (planned) {
    NoteScheduled(plan, begin);
    kernels::TensorView logits;
    if (const absl::Status status = Forward(plan, logits); status.ok()) {
      Sample(plan, logits);
      Output(plan, parts_.clock->Now());
      metrics_.failed_steps.Set(0);
      Finish(scheduler_.Complete(plan, sampled_), parts_.clock->Now());
      NoteDuration(plan, parts_.clock->Now() - begin);
    } else {
      base::Log(base::LogLevel::kError, "engine", "a step failed",
                {{"status", status.ToString()}, {"tokens", plan.num_tokens}});
      FailStep(plan, status);
    }
    scheduler_.Recycle(std::move(plan));
#ifndef NDEBUG
    scheduler_.CheckInvariants();  // after each step of every test
#endif
  }
  return planned || gave_back;
}

void StepLoop::Admit(absl::Time now) {
  admitted_.clear();
  admission_.Drain(admitted_, noticed_);
  for (AdmittedRequest& admitted : admitted_) {
    const LiveRequest& live = live_.Add(std::move(admitted));
    const std::shared_ptr<Request>& request = live.request;
    output_.Add(live.first_id, request);
    auto sequence = std::make_unique<Sequence>();
    sequence->id = live.first_id;
    sequence->request = request;
    sequence->tokens = request->prompt_ids;
    scheduler_.Add(std::move(sequence));
    // A notice that came before the request was in live_ is lost, so the flag of the request is
    // read here.
    if (request->cancelled.load(std::memory_order_acquire)) Reconsider(live, now);
  }
  for (const std::shared_ptr<const Request>& request : noticed_) {
    if (const LiveRequest* const live = live_.Find(*request)) Reconsider(*live, now);
  }
  noticed_.clear();  // noticed_ must not keep ended requests alive
}

void StepLoop::Reconsider(const LiveRequest& live, absl::Time now) {
  for (int32_t k = 0; k < live.request->params.sampling.n; ++k) {
    scheduler_.Reconsider(live.first_id + k, now);
  }
}

void StepLoop::NoteScheduled(const StepPlan& plan, absl::Time now) {
  metrics_.step_sequences.Set(std::ssize(plan.entries));
  metrics_.step_tokens.Set(plan.num_tokens);
  for (const StepPlanEntry& entry : plan.entries) live_.NoteScheduled(*entry.sequence, now);
}

void StepLoop::NoteDuration(const StepPlan& plan, absl::Duration elapsed) {
  int32_t decodes = 0;
  for (const StepPlanEntry& entry : plan.entries) decodes += entry.num_tokens == 1 ? 1 : 0;
  pacer_.NoteStep(static_cast<int32_t>(plan.num_tokens) - decodes, decodes, elapsed);
}

absl::Status StepLoop::Forward(const StepPlan& plan, kernels::TensorView& logits) {
  builder_.Build(plan, input_);
  ASSIGN_OR_RETURN(logits, parts_.model->Forward(input_, parts_.cache));
  return absl::OkStatus();
}

std::span<const float> StepLoop::LogitRow(const kernels::TensorView& logits, int64_t row) const {
  return {logits.data<const float>() + row * logits.dim(1), static_cast<size_t>(logits.dim(1))};
}

void StepLoop::Sample(const StepPlan& plan, const kernels::TensorView& logits) {
  rows_.clear();
  int64_t first_row = 0;
  for (const StepPlanEntry& entry : plan.entries) {
    const Sequence& sequence = *entry.sequence;
    const Request& request = *sequence.request;
    if (request.params.output.prompt_logprobs) PutPromptLogprobs(entry, logits, first_row);
    if (request.is_scoring()) {
      scores_.AddRows(entry, [&](int32_t i) { return LogitRow(logits, first_row + i); });
      first_row += entry.num_logit_rows;
      continue;
    }
    first_row += entry.num_logit_rows;
    for (int32_t k = 0; k < entry.num_samples; ++k) {
      rows_.push_back({.logits = LogitRow(logits, first_row - 1),
                       .request = &request,
                       .seed = request.seed + static_cast<uint64_t>(sequence.sample_index + k),
                       .tokens = sequence.tokens,
                       .prompt_len = sequence.prompt_len()});
    }
  }
  sampler_.Sample(rows_, parallel_for_, drawn_);
  scores_.Compute(parallel_for_);
}

void StepLoop::PutPromptLogprobs(const StepPlanEntry& entry, const kernels::TensorView& logits,
                                 int64_t first_row) {
  LiveRequest& live = live_.Of(*entry.sequence);
  const TokenIds& prompt = live.request->prompt_ids;
  TokenDelta delta;
  // The row of position p gives the log-probability of the token at p + 1.
  for (int32_t i = 0; i < entry.num_logit_rows; ++i) {
    const int64_t next = entry.first_index + entry.num_tokens - entry.num_logit_rows + i + 1;
    if (next >= static_cast<int64_t>(prompt.size())) break;
    if (next <= live.prompt_logprobs_sent) continue;  // computed again after a preemption
    delta.prompt_logprobs.push_back(ComputeLogprobs(LogitRow(logits, first_row + i), prompt[next],
                                                    *live.request->params.output.prompt_logprobs));
    live.prompt_logprobs_sent = next;
  }
  if (delta.prompt_logprobs.empty()) return;
  delta.seed = live.request->seed;
  live_.Queue(live, std::move(delta));
}

void StepLoop::Output(const StepPlan& plan, absl::Time now) {
  sampled_.tokens.clear();
  size_t row = 0;
  for (int64_t i = 0; i < std::ssize(plan.entries); ++i) {
    const StepPlanEntry& entry = plan.entries[i];
    if (entry.num_samples == 0) continue;
    live_.Of(*entry.sequence).forked = true;
    if (entry.sequence->request->is_scoring()) {
      OutputScored(entry, i, now);
    } else {
      OutputDrawn(entry, i, row, now);
      row += entry.num_samples;
    }
  }
}

void StepLoop::OutputDrawn(const StepPlanEntry& entry, int64_t plan_index, size_t first_row,
                           absl::Time now) {
  const Sequence& sequence = *entry.sequence;
  LiveRequest& live = live_.Of(sequence);
  for (int32_t k = 0; k < entry.num_samples; ++k) {
    absl::StatusOr<SampledRow>& drawn = drawn_[first_row + k];
    if (!drawn.ok()) {
      live.status = WithCause(drawn.status(), plan_index);
      sampled_.tokens.push_back({.id = 0,
                                 .finish_reason = FinishReason::kAbort,
                                 .is_void = absl::IsInternal(drawn.status())});
      continue;
    }
    const TokenVerdict verdict = CheckTokenStops(*live.request, parts_.tokenizer->end_ids(),
                                                 drawn->id, sequence.num_generated() + 1);
    const int32_t id = drawn->id;
    engine::Output output = output_.Push(sequence.id + k, *std::move(drawn), verdict);
    sampled_.tokens.push_back({.id = id, .finish_reason = output.delta.finish_reason});
    metrics_.generated_tokens.Add(1);
    if (live.first_token == absl::InfinitePast()) {
      metrics_.ttft.Observe(absl::ToDoubleSeconds(now - live.request->arrival));
    }
    live_.NoteTokens(live, 1, now);
    if (output.has_content) {
      live_.Queue(live, std::move(output.delta));
    }
  }
}

// Internal means that the model or the device failed. The content of the KV cache may tell which.
absl::Status StepLoop::WithCause(const absl::Status& status, int64_t plan_index) const {
  if (!absl::IsInternal(status)) return status;
  const std::string why = WhyNotFinite(input_, plan_index);
  return why.empty() ? status : absl::InternalError(absl::StrCat(status.message(), "; ", why));
}

std::string StepLoop::WhyNotFinite(const ModelInput& input, int64_t seq) const {
  const int32_t block_size = parts_.cache.shape().block_size;
  const int64_t num_blocks = base::CeilDiv(input.context_lens[seq], block_size);
  std::vector<std::span<const int32_t>> blocks;
  for (const GroupInput& group : input.groups) {
    const int64_t count = std::min(num_blocks, group.max_blocks_per_seq);
    blocks.emplace_back(group.block_table.data() + seq * group.max_blocks_per_seq, count);
  }
  return DescribeNonFiniteKv(*parts_.backend, parts_.cache, blocks).value_or("");
}

void StepLoop::OutputScored(const StepPlanEntry& entry, int64_t plan_index, absl::Time now) {
  LiveRequest& live = live_.Of(*entry.sequence);
  for (int32_t k = 0; k < entry.num_samples; ++k) {
    ContinuationStep step = scores_.Take(entry, k);
    sampled_.tokens.push_back(step.token);
    if (!step.status.ok()) live.status = WithCause(step.status, plan_index);
    if (!step.delta) continue;
    live_.NoteTokens(live, std::ssize(step.delta->token_ids), now);
    live_.Queue(live, *std::move(step.delta));
  }
}

void StepLoop::FailStep(const StepPlan& plan, const absl::Status& status) {
  metrics_.steps_failed.Add(1);
  metrics_.failed_steps.Add(1);
  metrics_.since_failure.Begin();
  for (const StepPlanEntry& entry : plan.entries) live_.Of(*entry.sequence).status = status;
  Finish(scheduler_.Fail(plan), parts_.clock->Now());
}

void StepLoop::Finish(const std::vector<FinishedSequence>& finished, absl::Time now) {
  // The metrics are updated before Emit, so that a client that has read its last token finds this
  // token counted and the blocks released.
  UpdateMetrics();
  live_.Emit();
  for (const FinishedSequence& end : finished) {
    const Sequence& sequence = *end.sequence;
    LiveRequest& live = live_.Of(sequence);
    live.summary.usage.recomputed_tokens += sequence.num_recomputed;
    live.summary.usage.num_preemptions += sequence.num_preemptions;
    // Until the prompt is computed, one sequence stands for all samples of its request.
    const int32_t num_ended = live.forked ? 1 : live.num_left;
    for (int32_t k = 0; k < num_ended; ++k) {
      if (end.cause != EndCause::kFinished) {
        live.request->sink->Put(output_.Cut(sequence.id + k, FinishReason::kAbort).delta);
      }
      output_.Remove(sequence.id + k);
      metrics_.finished_by_reason[static_cast<size_t>(sequence.finish_reason)].Add(1);
    }
    if (end.cause != EndCause::kFinished) {
      if (live.status.ok()) live.status = EndStatus(end.cause);
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
  // A request that has not started waits as one sequence. Its admission ticket is already counted.
  metrics_.num_preempted.Set(std::max<int64_t>(0, scheduler.num_waiting - live_.num_unstarted()));
  metrics_.blocks_free.Set(blocks.num_free);
  metrics_.blocks_cached.Set(blocks.num_cached);
  metrics_.blocks_held.Set(blocks.num_held);
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
  metrics_.block_copies.Set(blocks.num_copies);
  metrics_.preemptions.Set(scheduler.num_preemptions);
  metrics_.steps.Set(scheduler.num_steps);
}

}  // namespace quire::engine
