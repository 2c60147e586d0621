// The functions of StepLoop that turn what a step computed into what its requests get.

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "engine/step/step_loop.h"

namespace quire::engine {
namespace {

// The log-probability of a prompt token in a row whose largest logit is not finite.
constexpr float kNever = -std::numeric_limits<float>::infinity();

// Returns true if `drawn` is the drafted token, and the sequence goes on after it.
bool IsConfirmed(const RowWork& work, const SampledToken& drawn) {
  return drawn.finish_reason == FinishReason::kNone && drawn.id == work.given;
}

}  // namespace

void StepLoop::Output(const StepPlan& plan, absl::Time now) {
  sampled_.tokens.clear();
  size_t end = 0;
  for (int32_t i = 0; i < std::ssize(plan.entries); ++i) {
    const size_t first = end;
    while (end < result_.works.size() && result_.works[end].entry == i) ++end;
    OutputEntry(plan, i, first, end, now);
  }
}

void StepLoop::OutputEntry(const StepPlan& plan, int32_t index, size_t first, size_t end,
                           absl::Time now) {
  const StepPlanEntry& entry = plan.entries[index];
  const Sequence& sequence = *entry.sequence;
  if (sequence.finish_reason != FinishReason::kNone) {  // it ended while the step was in flight
    sampled_.tokens.resize(sampled_.tokens.size() + entry.num_draws());
    return;
  }
  LiveRequest& live = live_.Of(sequence);
  live.forked = live.forked || entry.num_samples > 0;
  for (size_t row = OutputPrompt(live, first, end); row < end; ++row) {
    const RowWork& work = result_.works[row];
    if (work.kind == RowWork::Kind::kCheck) {
      OutputCheck(live, row);
      continue;
    }
    if (work.kind == RowWork::Kind::kTopK) {
      OutputBeam(live, sequence, row, entry.num_draws(), now);
      continue;
    }
    if (!work.draws()) {
      scores_.Add(*live.request, work.sample, work.index, std::move(result_.rows[row]));
      continue;
    }
    OutputDrawn(sequence, row, now);
    if (work.kind == RowWork::Kind::kVerify && !IsConfirmed(work, sampled_.tokens.back())) {
      // The rows after this one follow a token that the sequence does not have.
      sampled_.tokens.resize(sampled_.tokens.size() + end - row - 1,
                             {.id = SampledToken::kNotDrawn});
      break;
    }
  }
  if (live.request->is_scoring()) OutputScores(plan, index, now);
}

void StepLoop::OutputCheck(LiveRequest& live, size_t row) {
  const absl::Status status = result_.rows[row].status();
  if (status.ok()) {
    sampled_.tokens.push_back({.finish_reason = FinishReason::kStop});
    return;
  }
  live.status = WithCause(status, result_.works[row].entry);
  sampled_.tokens.push_back(
      {.finish_reason = FinishReason::kAbort, .is_void = absl::IsInternal(status)});
}

size_t StepLoop::OutputPrompt(LiveRequest& live, size_t first, size_t end) {
  TokenDelta delta;
  size_t row = first;
  for (; row < end && result_.works[row].kind == RowWork::Kind::kPrompt; ++row) {
    const RowWork& work = result_.works[row];
    if (work.index <= live.prompt_logprobs_sent) continue;  // computed again after a preemption
    live.prompt_logprobs_sent = work.index;
    absl::StatusOr<kernels::SampledRow>& result = result_.rows[row];
    delta.prompt_logprobs.push_back(result.ok() ? *std::move(result->logprobs)
                                                : PositionLogprobs{.chosen = {work.given, kNever}});
  }
  if (!delta.prompt_logprobs.empty()) {
    delta.seed = live.request->seed;
    live_.Queue(live, std::move(delta));
  }
  return row;
}

void StepLoop::OutputDrawn(const Sequence& sequence, size_t row, absl::Time now) {
  const RowWork& work = result_.works[row];
  absl::StatusOr<kernels::SampledRow>& drawn = result_.rows[row];
  LiveRequest& live = live_.Of(sequence);
  if (!drawn.ok()) {
    live.status = WithCause(drawn.status(), work.entry);
    sampled_.tokens.push_back({.id = 0,
                               .finish_reason = FinishReason::kAbort,
                               .is_void = absl::IsInternal(drawn.status())});
    return;
  }
  const TokenVerdict verdict =
      CheckTokenStops(*live.request, parts_.tokenizer->end_ids(), drawn->id,
                      sequence.num_generated() + work.index + 1);
  const int32_t id = drawn->id;
  engine::Output output = output_.Push(live.first_id + work.sample, *std::move(drawn), verdict);
  sampled_.tokens.push_back({.id = id, .finish_reason = output.delta.finish_reason});
  metrics_.generated_tokens.Add(1);
  if (live.first_token == absl::InfinitePast()) {
    metrics_.ttft.Observe(absl::ToDoubleSeconds(now - live.request->arrival));
  }
  live_.NoteTokens(live, 1, now);
  if (output.has_content) live_.Queue(live, std::move(output.delta));
}

void StepLoop::OutputBeam(LiveRequest& live, const Sequence& sequence, size_t row,
                          int32_t num_draws, absl::Time now) {
  const Request& request = *live.request;
  if (live.beam_search == nullptr) {
    live.beam_search = std::make_unique<BeamSearch>(request, parts_.tokenizer->end_ids());
  }
  BeamSearch& search = *live.beam_search;
  search.SetRow(sequence.sample_index, std::move(result_.rows[row]),
                std::span(sequence.tokens).subspan(request.prompt_ids.size()));
  sampled_.tokens.resize(sampled_.tokens.size() + static_cast<size_t>(num_draws));
  if (!search.has_all_rows()) return;
  // The beams' entries follow each other in a plan, so their tokens are the last ones.
  const auto width = static_cast<size_t>(request.params.sampling.beam->width);
  const std::span<SampledToken> tokens = std::span(sampled_.tokens).last(width);
  if (const absl::Status status = search.Advance(); !status.ok()) {
    live.status = WithCause(status, result_.works[row].entry);
    std::ranges::fill(tokens, SampledToken{.finish_reason = FinishReason::kAbort,
                                           .is_void = absl::IsInternal(status)});
    return;
  }
  const auto num_new = static_cast<int64_t>(width);
  metrics_.generated_tokens.Add(num_new);
  if (live.first_token == absl::InfinitePast()) {
    metrics_.ttft.Observe(absl::ToDoubleSeconds(now - request.arrival));
  }
  live_.NoteTokens(live, num_new, now);
  if (search.ended()) {
    const FinishReason reason = search.answers().front().verdict.finish_reason;
    std::ranges::fill(tokens, SampledToken{.finish_reason = reason});
    QueueAnswers(live);
    return;
  }
  for (size_t slot = 0; slot < width; ++slot) {
    const BeamSearch::Child& child = search.children()[slot];
    tokens[slot] = {.id = child.token, .parent = child.parent};
  }
}

void StepLoop::QueueAnswers(LiveRequest& live) {
  const Request& request = *live.request;
  for (int32_t k = 0; k < request.params.sampling.beam->num_return; ++k) {
    const BeamSearch::Answer& answer = live.beam_search->answers()[static_cast<size_t>(k)];
    TokenDelta delta = output_.Whole(request, k, answer.tokens, answer.verdict);
    delta.score = answer.score;
    live_.Queue(live, std::move(delta));
  }
}

void StepLoop::OutputScores(const StepPlan& plan, int32_t index, absl::Time now) {
  const StepPlanEntry& entry = plan.entries[index];
  LiveRequest& live = live_.Of(*entry.sequence);
  for (int32_t k = 0; k < entry.num_samples; ++k) {
    ContinuationStep step = scores_.Take(entry, k);
    sampled_.tokens.push_back(step.token);
    if (!step.status.ok()) live.status = WithCause(step.status, index);
    if (!step.delta) continue;
    live_.NoteTokens(live, std::ssize(step.delta->token_ids), now);
    live_.Queue(live, *std::move(step.delta));
  }
}

// Internal means that the model or the device failed. The KV cache may show the cause.
absl::Status StepLoop::WithCause(const absl::Status& status, int32_t entry) const {
  if (!absl::IsInternal(status)) return status;
  const std::string why = runner_.WhyNotFinite(entry);
  return why.empty() ? status : absl::InternalError(absl::StrCat(status.message(), "; ", why));
}

}  // namespace quire::engine
