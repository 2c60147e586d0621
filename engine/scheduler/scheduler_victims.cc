// Which running sequences make way for others, and for which tenants.
//
// A tenant's part of the blocks, or of the places, is that of its share among the tenants that have
// requests. A tenant that is beyond its part makes way for one that is not.

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/waiting.h"

namespace quire::engine {
namespace {

// A start preempts at most so many sequences.
constexpr size_t kMostVictims = 16;

}  // namespace

const Scheduler::State* Scheduler::Oldest() const {
  const auto it = std::ranges::find_if_not(running_, &State::stalled);
  return it == running_.end() ? nullptr : *it;
}

double Scheduler::BlockLevel(const Group& group) const {
  return blocks_.charges().Charge(group.payer) /
         (static_cast<double>(num_blocks_) * shares_.part(group.tenant));
}

double Scheduler::PlaceLevel(const Group& group) const {
  return shares_.num_places(group.tenant) / (config_.max_num_seqs * shares_.part(group.tenant));
}

bool Scheduler::FitsPart(const State& state) const {
  const double part = shares_.part(state.group->tenant);
  const double blocks =
      blocks_.charges().Charge(state.group->payer) + static_cast<double>(NumBlocksOf(state));
  const int32_t places = shares_.num_places(state.group->tenant) + state.num_samples();
  // Where there are more tenants than places, each may have one.
  return blocks <= kPart * part * static_cast<double>(num_blocks_) &&
         places <= std::max(1.0, kPart * part * config_.max_num_seqs);
}

BlockManager::Exclusive Scheduler::ExclusiveOf(const State& state) const {
  BlockManager::Exclusive own = blocks_.ExclusiveOf(state.sequence->id);
  for (size_t k = 1; state.runs_beams() && k < state.beam_ids.size(); ++k) {
    const BlockManager::Exclusive more = blocks_.ExclusiveOf(state.beam_ids[k]);
    own.num_blocks += more.num_blocks;
    own.num_tokens += more.num_tokens;
  }
  return own;
}

// Returns the sequence to preempt; null when there is none. Prefers stalled sequences, then those
// of the tenant most beyond its part, then those with the fewest tokens to compute again. Sequences
// that would free no block come last.
Scheduler::State* Scheduler::PickVictim(const State& served) const {
  const bool one_tenant = shares_.num_active() <= 1;
  const State* const oldest = Oldest();
  const double own_level = one_tenant ? 0 : BlockLevel(*served.group);
  State* best = nullptr;
  std::tuple<bool, bool, double, int64_t> best_cost;
  for (size_t i = running_.size(); i-- > 0;) {  // backwards: among equals the youngest
    State* state = running_[i];
    if (state == &served || state->last_step == step_ + 1 || state == claimed_) continue;
    if (state->runs_beams() && state->in_flight > 0) continue;
    const bool same_tenant = state->group->tenant == served.group->tenant;
    const double level = one_tenant ? 0 : same_tenant ? own_level : BlockLevel(*state->group);
    if (!state->stalled()) {
      // A tenant that is further beyond its part makes way whatever the ages.
      const bool yields = !same_tenant && level > kPart && level > own_level && state != oldest;
      if (!yields && !served.older_than(*state)) continue;
      // Nobody within its part makes way for one beyond it. But if the oldest did not go on, none
      // of those that hold what it lacks might.
      if (!same_tenant && level <= kPart && own_level > kPart && &served != oldest) continue;
    }
    const BlockManager::Exclusive own = ExclusiveOf(*state);
    // Tokens that a shift removed from the cache must be computed again, too.
    const int64_t lost = config_.victim == VictimChoice::kYoungest
                             ? -static_cast<int64_t>(state->order)
                             : own.num_tokens + state->num_shifts * state->window().drop;
    const std::tuple cost(own.num_blocks == 0, !state->stalled(), -std::max(level, 1.0), lost);
    if (best == nullptr || cost < best_cost) {
      best = state;
      best_cost = cost;
    }
  }
  return best;
}

bool Scheduler::PickVictimsOf(const State& claimant, bool of_places, int64_t lacking) {
  victims_.clear();
  const State* const oldest = Oldest();
  const auto frees = [&](const State& state) {
    return of_places ? state.num_samples() : ExclusiveOf(state).num_blocks;
  };
  while (lacking > 0 && victims_.size() < kMostVictims) {
    State* best = nullptr;
    std::tuple<double, bool, int64_t> best_cost;
    for (State* state : running_) {
      const Group& group = *state->group;
      if (state == oldest || group.tenant == claimant.group->tenant || state->stalled()) continue;
      if (state->num_known - state->known_at_claim < kTokensBetweenClaims) continue;
      if (state->runs_beams() && state->in_flight > 0) continue;
      if (std::ranges::find(victims_, state) != victims_.end()) continue;
      // What its tenant holds without the other victims.
      double held =
          of_places ? shares_.num_places(group.tenant) : blocks_.charges().Charge(group.payer);
      for (const State* victim : victims_) {
        if (victim->group->tenant == group.tenant) held -= static_cast<double>(frees(*victim));
      }
      const double all = of_places ? config_.max_num_seqs : static_cast<double>(num_blocks_);
      const double level = held / (all * shares_.part(group.tenant));
      const int64_t num_freed = frees(*state);
      if (level <= kPart || num_freed == 0) continue;
      // The cheapest that will do alone; if there is none, the one that frees most.
      const bool will_do = num_freed >= lacking;
      const std::tuple cost(-level, !will_do,
                            will_do ? ExclusiveOf(*state).num_tokens : -num_freed);
      if (best == nullptr || cost < best_cost) {
        best = state;
        best_cost = cost;
      }
    }
    if (best == nullptr) return false;
    victims_.push_back(best);
    lacking -= frees(*best);
  }
  return lacking <= 0 && !victims_.empty();
}

void Scheduler::NoteLack(const State& state) {
  lacks_blocks_ = true;
  if (&state == Oldest()) oldest_lacks_blocks_ = true;
  waiting_->SetAside(state.group->tenant);
}

}  // namespace quire::engine
