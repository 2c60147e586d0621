// Which of the waiting sequences start in a step, and their starts.

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "engine/scheduler/flights.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/waiting.h"

namespace quire::engine {
namespace {

// A sequence that did not fit is tried again after this many calls of Schedule, even if no blocks
// have become available since. Other sequences may have computed part of its prompt in the
// meantime. The sequence then needs fewer new blocks.
constexpr int64_t kSchedulesToRetryStart = 8;

// FindTogether looks at only this many of a tenant's sequences: those that are first in turn.
constexpr size_t kMostCompared = 16;

// A step passes at most so many sequences and tenants that may not start.
constexpr size_t kMostAside = 16;

}  // namespace

void Scheduler::StartWaiting(absl::Time now, Budget& budget, StepPlan& plan) {
  idle_openings_ = num_openings_;
  if (oldest_lacks_blocks_) return;
  if (budget.tokens == 0) idle_openings_ = -1;
  passed_.clear();
  oldest_passed_ = waiting_->OldestIsAside();
  bool room_is_short = lacks_blocks_;
  for (size_t num_aside = 0; budget.tokens > 0 && num_aside < kMostAside;) {
    State* state = PickNext(now);
    if (state == nullptr) return;
    const TenantShares::TenantId tenant = state->group->tenant;
    if (state->first_row() && budget.logit_rows == 0) {
      oldest_passed_ = oldest_passed_ || IsTurnOfOldest();
      ++num_aside;
      if (state->times_passed >= kMostPasses) {
        waiting_->SetAside(tenant);
      } else {
        waiting_->SetAside(*state);
        passed_.push_back(state);
      }
      continue;
    }
    const bool is_barred = room_is_short && !FitsPart(*state);
    if (is_barred || !TryStart(*state, now)) {
      if (!state->started && waiting_->IsHeld(tenant)) continue;
      // What a tenant within its part lacks, or the only sequence of one, must come at last.
      if (!is_barred && (FitsPart(*state) || shares_.num_places(tenant) == 0)) {
        if (state->times_passed >= kMostPasses) return;
        passed_.push_back(state);
      }
      room_is_short = true;
      oldest_passed_ = oldest_passed_ || IsTurnOfOldest();
      ++num_aside;
      waiting_->SetAside(tenant);
      continue;
    }
    for (State* passed : together_) {
      if (passed == state) break;
      ++passed->times_passed;
    }
    for (State* passed : passed_) {
      const bool same_tenant = passed->group->tenant == tenant;
      // Where rows are lacking, other tenants pass in their own turns.
      if (same_tenant == (passed->turn == State::Turn::kAside)) ++passed->times_passed;
    }
    QUIRE_CHECK(TryPlanPrefill(*state, now, budget, plan))
        << "sequence " << state->sequence->id << " has started in vain";
    idle_openings_ = -1;
  }
}

bool Scheduler::TenantHasPlaces(const State& state) const {
  const int32_t most = MostRunning(state.request().params.limits, config_.max_num_seqs);
  // Without a limit of the tenant's own, TryStart makes room: sequences whose readers are stuck
  // make way, also for those of their own tenant.
  return most == config_.max_num_seqs ||
         shares_.num_places(state.group->tenant) + state.num_samples() <= most;
}

// Returns the next sequence to start; null when none may start in this step.
Scheduler::State* Scheduler::PickNext(absl::Time now) {
  while (true) {
    together_.clear();
    State* const first = FirstInTurn(now);
    if (first == nullptr) return nullptr;
    const bool by_age = first->started || IsTurnOfOldest();
    State* const next = by_age ? first : ShortestTogether(*first, now);
    if (next != first && flights_->TryFollow(*next)) continue;
    State* const load = flights_->WaitingLoad(*next);
    if (load == nullptr || !TenantHasPlaces(*load)) return next;
    if (waiting_->IsAside(load->group->tenant)) {  // the load lacks room, and `next` waits for it
      waiting_->SetAside(next->group->tenant);
      continue;
    }
    together_.clear();  // `next` gives its turn away, so the load passes nobody
    return load;
  }
}

// Returns the sequence that starts in the turn of `first`.
Scheduler::State* Scheduler::ShortestTogether(State& first, absl::Time now) {
  State* next = &first;
  FindTogether(first);
  for (State* state : together_) {
    const bool has_places = num_places_ + state->num_samples() <= config_.max_num_seqs;
    if (has_places && NumUncached(*state) < NumUncached(*next) && TenantHasPlaces(*state) &&
        SinkCanTake(*state, state->num_samples(), now)) {
      next = state;
    }
    if (state->times_passed >= kMostPasses) break;  // later sequences may not pass this one
  }
  return next;
}

// Fills together_ with those of the tenant's first kMostCompared new sequences that have the
// priority of `first` and whose arrivals and deadlines are within kTogether of those of `first`.
void Scheduler::FindTogether(const State& first) {
  const Request& request = first.request();
  const auto close = [](absl::Time a, absl::Time b) {
    return a == b || absl::AbsDuration(a - b) <= kTogether;
  };
  waiting_->FirstOf(first.group->tenant, kMostCompared, together_);
  std::erase_if(together_, [&](const State* state) {
    const Request& other = state->request();
    return state->priority != first.priority || !close(other.arrival, request.arrival) ||
           !close(other.deadline, request.deadline);
  });
}

// Returns the number of tokens that the cache lacks. The number is looked up again every
// kSchedulesToRetryStart calls of Schedule, because others may have computed part of the tokens
// meanwhile.
int64_t Scheduler::NumUncached(State& state) {
  if (state.num_uncached_in == 0 ||
      num_schedules_ - state.num_uncached_in >= kSchedulesToRetryStart) {
    state.num_uncached_in = num_schedules_;
    state.num_uncached = state.num_tokens();
    if (!state.request().params.cache.bypass_read) {
      state.num_uncached -=
          blocks_.NumCached(state.group->root_key, state.sequence->tokens, state.group->on);
    }
  }
  return state.num_uncached;
}

// Returns the first sequence in turn that may start: its sink has room, there is none that it
// should follow and, if it is new, its tenant has places. Returns null when there is none.
Scheduler::State* Scheduler::FirstInTurn(absl::Time now) {
  while (State* next = waiting_->Next(/*by_age=*/IsTurnOfOldest())) {
    // The sequence was preempted in a step in flight. It must wait until that step has completed.
    if (next->in_flight > 0) {
      oldest_passed_ = oldest_passed_ || IsTurnOfOldest();
      waiting_->SetAside(next->group->tenant);
      continue;
    }
    if (!next->started && !TenantHasPlaces(*next)) {
      waiting_->Hold(next->group->tenant);
      continue;
    }
    if (!SinkCanTake(*next, next->num_samples(), now)) {
      waiting_->Stall(*next);
    } else if (!flights_->TryFollow(*next)) {
      return next;
    }
  }
  return nullptr;
}

bool Scheduler::IsBarred(const State& state) const {
  const Bar& bar = bars_[static_cast<size_t>(state.group->tenant)];
  return bar.num_openings == num_openings_ && num_schedules_ < bar.until &&
         blocks_.room() <= bar.below;
}

Scheduler::State* Scheduler::StartClaimant(absl::Time now) {
  State* const state = std::exchange(claimant_, nullptr);
  if (state == nullptr || state->turn != State::Turn::kIn || !TenantHasPlaces(*state) ||
      !SinkCanTake(*state, state->num_samples(), now) || flights_->TryFollow(*state)) {
    return nullptr;
  }
  BlockManager::StartResult start;
  int64_t lacking = 0;
  if (num_places_ + state->num_samples() <= config_.max_num_seqs &&
      StartBlocks(*state, /*claims=*/false, &start, &lacking)) {
    blocks_.Release(state->sequence->id);
    return nullptr;  // it lacks nothing any more, and starts in its turn
  }
  if (TryStart(*state, now, /*claims=*/true)) return state;
  if (blocks_.AnyQuarantined()) claimant_ = state;  // the victims' blocks will come
  return nullptr;
}

bool Scheduler::TryStart(State& state, absl::Time now, bool claims) {
  if (!claims && IsBarred(state)) return false;
  BlockManager::StartResult start;
  bool any_victims = false;
  while (true) {
    const int32_t places = num_places_ + state.num_samples() - config_.max_num_seqs;
    const bool has_place = places <= 0;
    int64_t lacking = places;
    if (has_place && StartBlocks(state, claims, &start, &lacking)) {
      if (!IsOverQuota(state)) break;
      blocks_.Release(state.sequence->id);
      waiting_->Hold(state.group->tenant);
      return false;
    }
    // Preempts a stalled sequence. But if only blocks are lacking, and released blocks will become
    // available when the step in flight completes, no sequence is preempted.
    const bool waits = has_place && blocks_.AnyQuarantined();
    State* victim = waits ? nullptr : PickStalled();
    if (victim == nullptr && claims && !waits) {
      if (!std::exchange(any_victims, true) && !PickVictimsOf(state, !has_place, lacking)) {
        victims_.clear();
      }
      if (!victims_.empty()) {
        victim = victims_.back();
        victims_.pop_back();
        victim->known_at_claim = victim->num_known;
      }
    }
    if (victim == nullptr) {
      bars_[static_cast<size_t>(state.group->tenant)] = {
          .below = blocks_.room(),
          .until = num_schedules_ + kSchedulesToRetryStart,
          .num_openings = num_openings_};
      const bool is_below = has_place ? BlockLevel(*state.group) < 1 : PlaceLevel(*state.group) < 1;
      if (!claims && !state.started && claimant_ == nullptr && shares_.num_active() > 1 &&
          is_below) {
        claimant_ = &state;
      }
      return false;
    }
    Preempt(*victim);
  }
  if (claimant_ == &state) claimant_ = nullptr;
  const bool counts = !state.started || waiting_->CompetesWithOthers();
  waiting_->Remove(state);
  InsertRunning(state);

  Sequence& sequence = *state.sequence;
  const int64_t num_cached = start.num_cached;
  // Resumed samples start one by one. The first counts the prompt for all of them.
  if (std::exchange(state.group->has_started, true) && !state.started) {
    state.num_known = std::max(state.num_known, sequence.prompt_len());
  }
  // Counts only the cached prompt tokens that this sequence never computed or found cached before.
  const int64_t saved = std::min(num_cached, sequence.prompt_len()) -
                        std::min(state.num_known, sequence.prompt_len());
  if (saved > 0) {
    sequence.num_cached += saved;
    sequence.num_prefix = std::max(sequence.num_prefix, start.num_pinned);
    stats_.prompt_tokens_cached += saved;
  }
  sequence.num_computed = num_cached;
  state.num_planned = num_cached;
  state.num_shifts = 0;
  state.num_known = std::max(state.num_known, num_cached);
  if (!state.started) sequence.first_scheduled = now;
  if (counts) {
    const bool was_turn = IsTurnOfOldest() && !claims;
    starts_to_oldest_ = was_turn ? config_.starts_per_oldest : std::max(1, starts_to_oldest_ - 1);
  }
  state.started = true;
  flights_->Start(state);
  return true;
}

Scheduler::State* Scheduler::PickStalled() const {
  for (State* state : running_) {
    if (state->stalled() && state->last_step != step_ + 1) return state;
  }
  return nullptr;
}

int64_t Scheduler::NumBlocksOf(const State& state) const {
  int64_t num_tokens = state.num_tokens();
  if (const CacheWindow& window = state.window(); window.on()) {
    num_tokens = std::min(num_tokens, static_cast<int64_t>(window.capacity()));
  }
  return blocks_.NumBlocksFor(num_tokens) + BlocksToRejoin(state);
}

// Starts the sequence in the cache and takes all blocks of its context up to its first shift.
// Returns false if too few blocks would then be available for running sequences.
bool Scheduler::StartBlocks(State& state, bool claims, BlockManager::StartResult* start,
                            int64_t* lacking) {
  const CacheParams& cache = state.request().params.cache;
  const CacheAccess access{.read = !cache.bypass_read && state.first_row() != 0,
                           .write = !cache.bypass_write && state.beams.empty(),
                           .payer = state.group->payer,
                           .num_together = state.has_beams ? state.num_samples() : 1};
  const SequenceId id = state.sequence->id;
  std::span<const int32_t> tokens = state.sequence->tokens;
  tokens = tokens.first(static_cast<size_t>(state.num_tokens()));
  if (const CacheWindow& window = state.window(); window.on()) {
    tokens = tokens.first(std::min<size_t>(tokens.size(), window.capacity()));
  }
  const int64_t num_tokens = std::ssize(tokens);
  // Tokens whose rows need logits must be computed, also after a preemption, so only the tokens
  // before first_row() may come from the cache. StartSequence gets one token more, because
  // StartSequence does not look up the last token.
  std::span<const int32_t> lookup = tokens;
  if (const int64_t end = state.first_row().value_or(lookup.size()) + 1; end < std::ssize(lookup)) {
    lookup = lookup.first(static_cast<size_t>(end));
  }
  // A sequence that runs alone may fill the cache to the last block. One that claims blocks leaves
  // room for its own tokens alone.
  const bool alone = running_.empty();
  const int64_t num_growing = claims ? 1 : std::ssize(running_);
  const int64_t spare =
      BlocksToRejoin(state) + (alone ? 0 : 1 + config_.headroom_blocks * num_growing);
  for (const bool allow_copy : {true, false}) {
    *start = blocks_.StartSequence(id, state.group->root_key, lookup, access, allow_copy,
                                   state.group->on);
    if (blocks_.CanGrow(id, num_tokens, spare)) {
      QUIRE_CHECK(blocks_.TryGrow(id, num_tokens));
      return true;
    }
    *lacking = blocks_.NumBlocksToGrow(id, num_tokens) + spare - blocks_.num_available();
    blocks_.Release(id);
    // The source of the copy may be the very block that is lacking. So the start is tried again
    // without a copy.
    if (!alone || start->num_cached % blocks_.block_size() == 0) return false;
  }
  return false;
}

}  // namespace quire::engine
