// The drafts of a step: which guesses are worth their rows, and what becomes of them.

#include <algorithm>
#include <span>

#include "base/check.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/waiting.h"

namespace quire::engine {
namespace {

// How far the outcome of one guess moves the chance of the sequence's next guess, and of the first
// guess of a new sequence.
constexpr double kLearned = 0.05;
constexpr double kLearnedByAll = 0.01;

// The least quotient of what a draft is expected to yield and its price. Both are estimates, and a
// draft that barely pays gains little.
constexpr double kLeastReturn = 1.5;

}  // namespace

Scheduler::Drafting Scheduler::BeginDrafting(const Budget& budget) const {
  // A prompt that waits and may start takes the time that drafts would take.
  const bool may_start = waiting_->size() > 0 && num_openings_ != idle_openings_;
  if (config_.max_draft_tokens == 0 || any_prefill_ || claimed_ != nullptr || may_start) return {};
  // Each sequence may need a token besides the drafts. One more token is left for a start, which
  // many drafts could otherwise hold up for ever.
  int32_t num_running = 0;
  for (const State* state : running_) num_running += state->runs_beams() ? state->num_samples() : 1;
  return {.most = std::min(budget.tokens - 1 - num_running, budget.logit_rows),
          .rows = num_running,
          .tokens = static_cast<double>(num_running)};
}

double Scheduler::PriceOf(const Drafting& drafting) const {
  return config_.row_share ? drafting.tokens * config_.row_share(drafting.rows) : 0.0;
}

int32_t Scheduler::Draft(State& state, Drafting& drafting, StepPlan& plan) {
  state.guess = State::kNoGuess;
  // While not even a certain guess is worth its row, nothing is looked up.
  if (state.is_scoring || drafting.most <= 0 || PriceOf(drafting) * kLeastReturn > 1.0) return 0;
  // The step draws one token more than it drafts.
  const int64_t left = state.request().max_tokens - state.sequence->num_generated() - 1;
  int64_t most = std::min<int64_t>({drafting.most, config_.max_draft_tokens, left});
  if (const CacheWindow& window = state.window(); window.on()) {
    most = std::min(most, window.NextShift(state.num_planned) - state.num_planned - 1);
  }
  if (most <= 0) return 0;

  // The n-th draft yields a token if it and all before it are right.
  Drafting with = drafting;
  double expected = 0.0, price = 0.0, gain = state.guess_chance;
  int32_t num_drafts = 0;
  for (; num_drafts < most; ++num_drafts, gain *= state.guess_chance) {
    const double dear = PriceOf(with);
    if (gain < kLeastReturn * dear) break;
    expected += gain;
    price += dear;
    with.tokens += gain;
    ++with.rows;
    --with.most;
  }
  const int64_t num_tokens = state.PositionOf(state.num_planned + 1 + num_drafts);
  const auto spare = static_cast<int64_t>(running_.size());
  if (num_drafts > 0 && (!SinkHasRoom(state, 1 + num_drafts) ||
                         !blocks_.CanGrow(state.sequence->id, num_tokens, spare))) {
    return 0;
  }
  const auto first = plan.drafts.size();
  if (state.lookup.Draft(state.sequence->tokens, std::max(num_drafts, 1), plan.drafts) == 0) {
    return 0;
  }
  if (num_drafts == 0) {  // what it would have yielded is learned all the same
    state.guess = plan.drafts[first];
    plan.drafts.pop_back();
    return 0;
  }
  QUIRE_CHECK(blocks_.TryGrow(state.sequence->id, num_tokens));
  drafting = with;
  stats_.drafted_tokens += num_drafts;
  stats_.drafts_expected += expected;
  stats_.drafts_price += price;
  return num_drafts;
}

void Scheduler::LearnGuess(State& state, bool was_right) {
  const double outcome = was_right ? 1.0 : 0.0;
  state.guess_chance += kLearned * (outcome - state.guess_chance);
  guess_chance_ += kLearnedByAll * (outcome - guess_chance_);
}

int32_t Scheduler::TakeDrafts(State& state, const StepPlanEntry& entry,
                              std::span<const SampledToken> tokens) {
  // All tokens but the last are accepted drafts. The last was drawn after them.
  const auto num_accepted = static_cast<int32_t>(tokens.size()) - 1;
  const int32_t num_refused = entry.num_drafts - num_accepted;
  for (const SampledToken& token : tokens.first(tokens.size() - 1)) {
    state.sequence->tokens.push_back(token.id);
    LearnGuess(state, true);
  }
  // The drafts after a wrong one were not put to the test.
  if (num_refused > 0) LearnGuess(state, false);
  stats_.generated_tokens += num_accepted;
  stats_.accepted_tokens += num_accepted;
  // Later steps write over the K and V of the refused drafts. Until then no query sees them,
  // because they are past the end of the context.
  state.num_planned -= num_refused;
  state.num_known = std::max(state.num_known, state.num_planned);
  return num_refused;
}

}  // namespace quire::engine
