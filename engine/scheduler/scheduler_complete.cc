// Scheduler::Complete and Scheduler::Fail, for a step that has run or has failed, and the functions
// that they call.

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "engine/scheduler/flights.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/waiting.h"

namespace quire::engine {

Scheduler::InFlight& Scheduler::OldestInFlight(const StepPlan& plan) {
  QUIRE_CHECK(!in_flight_.empty() && in_flight_.front().step == plan.step &&
              in_flight_.front().items.size() == plan.entries.size())
      << "step " << plan.step << " is not the next to complete";
  return in_flight_.front();
}

void Scheduler::EndOldestInFlight() {
  InFlight step = std::move(in_flight_.front());
  in_flight_.erase(in_flight_.begin());
  step.items.clear();
  spare_in_flight_.push_back(std::move(step));
  ForgetEnded();
}

void Scheduler::ForgetEnded() {
  std::erase_if(ended_, [](const auto& state) { return state->in_flight == 0; });
}

// Generated tokens are committed when they fill a block, at the end of the step, or when the
// sequence stops running. So most tokens cost the cache nothing.
inline bool Scheduler::TryCommitLater(State& state, int64_t before, int64_t after) {
  if (before < state.prompt_len || state.has_beams || state.has_window || state.leads ||
      state.num_followers > 0 || has_windows_) {
    return false;
  }
  const int64_t in_last = after % blocks_.block_size();
  if (in_last == 0) {
    full_.push_back(&state);
  } else if (after - before > in_last) {
    return false;
  }
  state.has_uncommitted = true;
  return true;
}

std::vector<FinishedSequence> Scheduler::Complete(const StepPlan& plan,
                                                  const SampledTokens& sampled) {
  std::vector<FinishedSequence> finished;
  InFlight& step = OldestInFlight(plan);
  blocks_.CompleteStep(plan.step);
  size_t first_token = 0;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    PrefetchAhead(i, step.items.size(), /*completes=*/true,
                  [&step](size_t k) { return step.items[k].state; });
    const StepPlanEntry& entry = plan.entries[i];
    const InFlight::Item& item = step.items[i];
    State& state = *item.state;
    QUIRE_CHECK(first_token + entry.num_draws() <= sampled.tokens.size())
        << sampled.tokens.size() << " tokens, for " << first_token + entry.num_draws();
    std::span<const SampledToken> tokens =
        std::span(sampled.tokens).subspan(first_token, entry.num_draws());
    first_token += entry.num_draws();

    --state.in_flight;
    state.unsampled -= entry.num_draws();
    state.group->deltas_in_flight -= item.num_deltas;
    if (state.phase == State::Phase::kEnded) {
      stats_.num_overrun += entry.num_tokens;
      continue;
    }
    Sequence& sequence = *entry.sequence;                 // one of the state's
    const bool lost = item.num_holds != state.num_holds;  // preempted meanwhile
    int32_t num_refused = 0;
    if (entry.num_drafts > 0) {
      while (tokens.back().id == SampledToken::kNotDrawn) tokens = tokens.first(tokens.size() - 1);
      num_refused = TakeDrafts(state, entry, tokens);
    } else if (state.guess != State::kNoGuess && !tokens.empty()) {
      LearnGuess(state, tokens.back().id == state.guess);
    }
    if (!lost) {
      const int64_t before = sequence.num_computed;
      sequence.num_computed += entry.num_tokens - num_refused;
      state.is_void = std::ranges::any_of(tokens, &SampledToken::is_void);
      if (!state.is_void && !TryCommitLater(state, before, sequence.num_computed)) {
        Commit(state, sequence);
      }
    }
    if (tokens.empty()) {
      if (state.made_beams() && !state.forked && !lost &&
          sequence.num_computed == state.num_joint) {
        ForkBeams(state);
      }
      continue;
    }
    if (state.has_beams) {
      TakeBeams(state, tokens, lost, finished);
    } else if (!state.forked) {
      ForkSamples(state, tokens, lost, finished);
    } else {
      TakeToken(state, tokens.back(), finished);
    }
  }
  QUIRE_CHECK(first_token == sampled.tokens.size())
      << sampled.tokens.size() << " tokens, for " << first_token;
  CommitFull();
  EndOldestInFlight();
  return finished;
}

std::vector<FinishedSequence> Scheduler::Fail(const StepPlan& plan) {
  std::vector<FinishedSequence> finished;
  InFlight& step = OldestInFlight(plan);
  blocks_.CompleteStep(plan.step);
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    State& state = *step.items[i].state;
    --state.in_flight;
    state.unsampled -= plan.entries[i].num_draws();
    state.group->deltas_in_flight -= step.items[i].num_deltas;
    if (state.phase == State::Phase::kEnded) continue;
    finished.push_back(End(state, FinishReason::kAbort, EndCause::kFailed));
  }
  EndOldestInFlight();
  return finished;
}

void Scheduler::ForkSamples(State& first, std::span<const SampledToken> sampled, bool lost,
                            std::vector<FinishedSequence>& finished) {
  first.forked = true;
  Sequence& sequence = *first.sequence;
  for (size_t k = 1; k < sampled.size(); ++k) {
    Sequence sibling;
    sibling.id = sequence.id + static_cast<SequenceId>(k);
    sibling.sample_index = static_cast<int32_t>(k);
    sibling.request = sequence.request;
    sibling.tokens.reserve(sequence.tokens.capacity());
    sibling.tokens = sequence.tokens;
    sibling.first_scheduled = sequence.first_scheduled;
    State& state = NewState(std::move(sibling), first.group, first.order + k);
    state.started = true;
    state.forked = true;
    state.num_known = first.num_known;
    if (!lost) AddPlaces(first, -1);  // the first sample held this place until now
    if (!lost && blocks_.TryFork(sequence.id, state.sequence->id)) {
      state.sequence->num_computed = sequence.num_computed;
      state.num_planned = sequence.num_computed;
      state.num_shifts = first.num_shifts;
      InsertRunning(state);
    } else {
      waiting_->Add(state);
    }
    TakeToken(state, sampled[k], finished);
  }
  TakeToken(first, sampled[0], finished);
}

void Scheduler::TakeToken(State& state, const SampledToken& token,
                          std::vector<FinishedSequence>& finished) {
  if (token.finish_reason == FinishReason::kAbort) {
    finished.push_back(End(state, FinishReason::kAbort, EndCause::kFailed));
    return;
  }
  std::vector<int32_t>& tokens = state.sequence->tokens;
  if (state.pins != kNoPin) {
    // The token was a verdict.
  } else if (const TokenIds* continuation = state.continuation(); continuation == nullptr) {
    tokens.push_back(token.id);
    ++stats_.generated_tokens;
  } else if (token.finish_reason == FinishReason::kNone) {
    // All tokens of the continuation but the last can now be computed. The last token need not be
    // computed, because its row of logits is not used.
    tokens.insert(tokens.end(), continuation->begin(), continuation->end() - 1);
  } else {
    tokens.push_back(token.id);
    stats_.scored_tokens += std::ssize(*continuation);
  }
  if (token.finish_reason != FinishReason::kNone) {
    finished.push_back(End(state, token.finish_reason, EndCause::kFinished));
  }
}

void Scheduler::Commit(State& state, const Sequence& sequence) {
  state.has_uncommitted = false;
  blocks_.Commit(sequence.id, sequence.tokens, state.PositionOf(sequence.num_computed));
  if (state.pins != kNoPin && sequence.num_computed == state.prompt_len) {
    // Without its parts in a window, or places for them, the prompt is not pinned.
    blocks_.TryPin(state.pins, state.group->root_key, sequence.tokens, state.group->payer);
  }
  if ((state.leads || state.num_followers > 0) && flights_->NoteComputed(state)) {
    ++num_openings_;
  }
}

void Scheduler::CommitFull() {
  computed_.clear();
  for (State* state : full_) {
    if (!std::exchange(state->has_uncommitted, false)) continue;  // it has ended
    computed_.push_back({.id = state->id,
                         .tokens = state->sequence->tokens,
                         .num_tokens = state->sequence->num_computed});
  }
  full_.clear();
  blocks_.CommitAll(computed_);
}

void Scheduler::CommitRest(State& state) {
  if (!std::exchange(state.has_uncommitted, false)) return;
  blocks_.Commit(state.id, state.sequence->tokens, state.sequence->num_computed);
}

// Before the release, so that nothing is evicted meanwhile.
void Scheduler::PinSession(const State& state) {
  SessionPin* const pin = state.request().session_pin.get();
  if (pin == nullptr) return;
  if (blocks_.IsPinned(pin->id)) blocks_.Unpin(pin->id);
  pin->num_tokens.store(blocks_.TryPinTable(pin->id, state.sequence->id),
                        std::memory_order_release);
}

}  // namespace quire::engine
