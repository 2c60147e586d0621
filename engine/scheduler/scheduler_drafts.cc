// Scheduler::Draft and Scheduler::TakeDrafts: the length of each draft, and its outcome.

#include <algorithm>
#include <span>

#include "base/check.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_state.h"

namespace quire::engine {
namespace {

// After n drafts in a row without an accepted token, a sequence makes 2^n - 1 decodes without a
// draft. This is the largest n.
constexpr int32_t kMostMisses = 4;

}  // namespace

int32_t Scheduler::MostDrafts(const Budget& budget) const {
  if (config_.max_draft_tokens == 0 || any_prefill_ || claimed_ != nullptr) return 0;
  // Each sequence may need a token besides the drafts. One more token is left for a start, which
  // many drafts could otherwise hold up for ever.
  int32_t num_running = 0;
  for (const State* state : running_) num_running += state->runs_beams() ? state->num_samples() : 1;
  const int32_t most = std::min(config_.max_tokens_with_drafts, budget.tokens - 1) - num_running;
  return std::min(most, budget.logit_rows);
}

int32_t Scheduler::Draft(State& state, int32_t most, StepPlan& plan) {
  if (state.is_scoring) return 0;
  if (state.draft_pause > 0) {
    --state.draft_pause;
    return 0;
  }
  if (most <= 0) return 0;
  if (state.draft_len == 0) state.draft_len = config_.max_draft_tokens;
  most = std::min(most, state.draft_len);
  // The step draws one token more than it drafts.
  const int64_t left = state.request().max_tokens - state.sequence->num_generated() - 1;
  most = static_cast<int32_t>(std::min<int64_t>(most, left));
  if (const CacheWindow& window = state.window(); window.on()) {
    const int64_t to_shift = window.NextShift(state.num_planned) - state.num_planned - 1;
    most = static_cast<int32_t>(std::min<int64_t>(most, to_shift));
  }
  if (most <= 0 || !SinkHasRoom(state, 1 + most)) return 0;
  const int64_t num_tokens = state.PositionOf(state.num_planned + 1 + most);
  const auto spare = static_cast<int64_t>(running_.size());
  if (!blocks_.CanGrow(state.sequence->id, num_tokens, spare)) return 0;
  const int32_t num_drafts = state.lookup.Draft(state.sequence->tokens, most, plan.drafts);
  if (num_drafts == 0) return 0;
  QUIRE_CHECK(blocks_.TryGrow(state.sequence->id, num_tokens));
  stats_.drafted_tokens += num_drafts;
  return num_drafts;
}

int32_t Scheduler::TakeDrafts(State& state, const StepPlanEntry& entry,
                              std::span<const SampledToken> tokens) {
  // All tokens but the last are accepted drafts. The last was drawn after them.
  const auto num_accepted = static_cast<int32_t>(tokens.size()) - 1;
  const int32_t num_refused = entry.num_drafts - num_accepted;
  for (const SampledToken& token : tokens.first(tokens.size() - 1)) {
    state.sequence->tokens.push_back(token.id);
  }
  stats_.generated_tokens += num_accepted;
  stats_.accepted_tokens += num_accepted;
  // Later steps write over the K and V of the refused drafts. Until then no query sees them,
  // because they are past the end of the context.
  state.num_planned -= num_refused;
  state.num_known = std::max(state.num_known, state.num_planned);
  state.num_misses = num_accepted > 0 ? 0 : std::min(state.num_misses + 1, kMostMisses);
  state.draft_pause = (1 << state.num_misses) - 1;
  state.draft_len = num_refused > 0 ? std::max(1, num_accepted)
                                    : std::min(2 * state.draft_len, config_.max_draft_tokens);
  return num_refused;
}

}  // namespace quire::engine
