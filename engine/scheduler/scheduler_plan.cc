// Scheduler::Schedule, which plans one step, and the functions that it calls.

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "engine/scheduler/flights.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/waiting.h"

namespace quire::engine {

StepPlan Scheduler::Schedule(absl::Time now) {
  QUIRE_CHECK(static_cast<int32_t>(in_flight_.size()) <= config_.pipeline_depth)
      << in_flight_.size() << " steps are in flight";
  StepPlan plan;
  if (!spare_plans_.empty()) {
    plan = std::move(spare_plans_.back());
    spare_plans_.pop_back();
  }
  plan.step = step_ + 1;
  plan.num_tokens = 0;
  in_flight_.emplace_back();
  if (!spare_in_flight_.empty()) {
    in_flight_.back() = std::move(spare_in_flight_.back());
    spare_in_flight_.pop_back();
  }
  in_flight_.back().step = plan.step;
  ++num_schedules_;
  num_sampled_ = 0;
  lacks_blocks_ = oldest_lacks_blocks_ = oldest_passed_ = false;

  DropEnded(now);
  waiting_->Rise(now);
  ForgetEnded();
  blocks_.BeginStep(plan.step, now);
  claimed_ = StartClaimant(now);
  Budget budget{.tokens = config_.max_num_batched_tokens, .logit_rows = config_.max_logit_rows};
  PlanDecodes(now, budget, plan);
  FlushCharge();
  if (!plan.empty() && config_.prefill_limit) {
    // A draft takes as long as a decode.
    const auto num_decodes = static_cast<int32_t>(plan.entries.size() + plan.drafts.size());
    const int32_t least = claimed_ == nullptr ? 1 : 2;  // also beside the oldest
    budget.tokens = std::min(budget.tokens, std::max(least, config_.prefill_limit(num_decodes)));
  }
  PlanPrefills(now, budget, plan);
  QUIRE_CHECK(claimed_ == nullptr || claimed_->last_step == plan.step)
      << "sequence " << claimed_->sequence->id << " has started in vain";
  StartWaiting(now, budget, plan);
  waiting_->RestoreAside();
  blocks_.EndStep(!plan.empty(), &plan.copies, &plan.shifts);

  if (plan.empty()) {
    spare_in_flight_.push_back(std::move(in_flight_.back()));
    in_flight_.pop_back();
    return plan;
  }
  step_ = plan.step;
  ++stats_.num_steps;
  stats_.scheduled_tokens += plan.num_tokens;
  return plan;
}

void Scheduler::NoteStalled(State& state, absl::Time now) {
  if (!state.stalled()) ++num_openings_;  // a start may preempt the sequence
  state.stalled_since = std::min(state.stalled_since, now);
}

bool Scheduler::IsToOpen(const State& state) const {
  return state.forked && state.continuation() != nullptr &&
         !blocks_.Covers(state.sequence->id, state.num_tokens());
}

// Fills scratch_ with the running sequences, oldest first. Where blocks may not do for all, those
// of tenants within their parts come before the others but the oldest, because what is planned
// makes way for nobody.
void Scheduler::OrderDecodes() {
  const bool may_do = !any_to_open_ && blocks_.num_available() >= std::ssize(running_);
  if (shares_.num_active() <= 1 || may_do) {
    scratch_ = running_;
    return;
  }
  scratch_.clear();
  beyond_.clear();
  const State* const oldest = Oldest();
  for (State* state : running_) {
    const bool is_beyond = state != oldest && BlockLevel(*state->group) > kPart;
    (is_beyond ? beyond_ : scratch_).push_back(state);
  }
  scratch_.insert(scratch_.end(), beyond_.begin(), beyond_.end());
}

void Scheduler::PlanDecodes(absl::Time now, Budget& budget, StepPlan& plan) {
  // One token is kept for prefills. Otherwise many decodes could hold up the prefills for ever.
  const int32_t kept = (any_prefill_ ? 1 : 0) + (claimed_ == nullptr ? 0 : 1);
  OrderDecodes();
  Drafting drafting = BeginDrafting(budget);
  for (size_t i = 0; i < scratch_.size(); ++i) {
    State* state = scratch_[i];
    PrefetchAhead(i, scratch_.size(), /*completes=*/false,
                  [this](size_t k) { return scratch_[k]; });
    if (budget.tokens <= kept) return;
    // Another sequence may have preempted this one in this loop.
    if (state->phase != State::Phase::kRunning || state->AwaitsToken()) continue;
    if (state == claimed_) continue;  // is planned among the prefills
    if (state->runs_beams()) {
      const int32_t before = budget.tokens;
      PlanBeams(*state, budget.tokens - kept, budget, plan);
      // Beams that catch up take more tokens than they were counted with.
      drafting.most -= std::max(0, before - budget.tokens - state->num_samples());
      continue;
    }
    // After the fork, a continuation takes all its blocks here, the oldest sequence first. MakeRoom
    // may then add a block copy to the step, and a step must include every sequence for which it
    // copies a block. So the first token of the continuation is planned at once. The other tokens
    // are planned among the prefills.
    const bool opens = IsToOpen(*state);
    if (!opens && !state->IsDecode()) continue;
    const int64_t end = opens ? state->num_tokens() : state->num_planned + 1;
    if (!SinkCanTake(*state, 1, now) || WaitsForQuota(*state, end)) continue;
    if (!HasRoom(*state, end) && !MakeRoom(*state, end)) {
      NoteLack(*state);
      continue;
    }
    const bool may_draft = !opens && config_.max_draft_tokens > 0;
    const int32_t num_drafts = may_draft ? Draft(*state, drafting, plan) : 0;
    PlanChunk(*state, 1, num_drafts, plan);
    budget.tokens -= 1 + num_drafts;
    budget.logit_rows -= num_drafts;
  }
}

void Scheduler::PlanChunk(State& state, int32_t num_tokens, int32_t num_drafts, StepPlan& plan) {
  Sequence& sequence = *state.sequence;
  const int64_t begin = state.num_planned;
  const int64_t end = begin + num_tokens;  // without the drafts
  const int64_t num_known = state.num_tokens();
  const bool decode = state.IsDecode();
  if (has_windows_) blocks_.PrepareWrite(sequence.id, state.PositionOf(end + num_drafts));
  StepPlanEntry entry{.sequence = &sequence,
                      .first_index = begin,
                      .first_position = state.PositionOf(begin),
                      .num_tokens = num_tokens + num_drafts,
                      .num_drafts = num_drafts,
                      .first_draft = static_cast<int32_t>(plan.drafts.size()) - num_drafts};
  const bool rejoins = state.made_beams();  // the beams fork again, and need no row for that
  if (end == num_known + state.unsampled && !rejoins) {
    entry.num_samples = state.num_samples();
    entry.num_logit_rows = 1 + num_drafts;
  }
  entry.num_logit_rows = std::max(entry.num_logit_rows, state.NumRows(num_tokens));
  if (begin == num_known) entry.token_from_previous = state.sample_index;

  const int32_t num_deltas = std::max(entry.num_draws(), entry.num_logit_rows > 0 ? 1 : 0);
  in_flight_.back().items.push_back(
      {.state = &state, .num_holds = state.num_holds, .num_deltas = num_deltas});
  state.group->deltas_in_flight += num_deltas;
  ++state.in_flight;
  state.unsampled += entry.num_draws();
  // A request with a single sample counts as forked from here on, because there is nothing to fork.
  state.forked = state.forked || entry.num_samples == 1;
  state.sample_index = num_sampled_;
  num_sampled_ += entry.num_draws();
  state.num_planned = end + num_drafts;
  state.last_step = plan.step;
  Charge(state.group->tenant,
         num_tokens * (decode ? TenantShares::kDecodeCost : TenantShares::kPrefillCost) +
             num_drafts * TenantShares::kPrefillCost);

  if (begin < state.num_known) {
    const int64_t again = std::min(state.num_known - begin, int64_t{num_tokens});
    sequence.num_recomputed += again;
    stats_.recomputed_tokens += again;
  }
  if (begin < state.prompt_len) {
    const int64_t prompt_begin = std::max(begin, state.num_known);
    stats_.prompt_tokens_computed +=
        std::max(int64_t{0}, std::min(end, state.prompt_len) - prompt_begin);
  }
  state.num_known = std::max(state.num_known, end);

  plan.num_tokens += entry.num_tokens;
  plan.entries.push_back(entry);
}

// Charges of one tenant after another are added up first.
void Scheduler::Charge(TenantShares::TenantId tenant, int64_t cost) {
  if (tenant != charged_) FlushCharge();
  charged_ = tenant;
  charge_ += cost;
}

void Scheduler::FlushCharge() {
  if (charge_ == 0) return;
  shares_.Charge(charged_, std::exchange(charge_, 0));
  waiting_->NoteCharged(charged_);
}

bool Scheduler::MakeRoom(State& state, int64_t end) {
  const SequenceId id = state.sequence->id;
  const TableShift shift = state.ShiftDue();
  const int64_t num_tokens = state.PositionOf(end) - shift.count;
  while (!blocks_.TryGrow(id, num_tokens, shift)) {
    // The table can grow once the step in flight completes and blocks become available. So no other
    // sequence need be preempted.
    if (blocks_.CouldGrowLater(id, num_tokens, shift)) return false;
    State* victim = PickVictim(state);
    if (victim == nullptr) return false;
    Preempt(*victim);
  }
  if (shift.count > 0) ++state.num_shifts;
  // In a window, each token needs a place, and a shift may be due at any.
  if (!state.has_window && !has_windows_) {
    state.room_end = blocks_.NumBlocksFor(end) * blocks_.block_size();
    state.room_seals = blocks_.num_seals();
  }
  return true;
}

void Scheduler::Preempt(State& victim) {
  flights_->Stop(victim);
  CommitRest(victim);
  victim.room_end = 0;
  if (victim.runs_beams()) {
    ReleaseBeams(victim, {.comes_back = true});
    victim.num_joint = NumJointTokens(victim);
    victim.forked = false;
  } else {
    blocks_.Release(victim.sequence->id, {.comes_back = true});
  }
  AddPlaces(victim, -victim.num_samples());
  running_.erase(std::ranges::find(running_, &victim));
  waiting_->Add(victim);
  victim.phase = State::Phase::kWaiting;
  victim.lookup = PromptLookup();  // whose memory may be needed elsewhere
  victim.num_planned = 0;
  victim.sequence->num_computed = 0;
  ++victim.sequence->num_preemptions;
  ++victim.num_holds;
  ++stats_.num_preemptions;
}

}  // namespace quire::engine
