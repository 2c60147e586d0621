// The functions of Scheduler for tenants that may hold only so many blocks of the KV cache.

#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_state.h"

namespace quire::engine {

// Returns true if the tenant of a sequence that has its blocks for a start holds too many. One
// sequence of each tenant may always run, so that every request ends.
bool Scheduler::IsOverQuota(const State& state) const {
  const int32_t most = state.group->max_blocks;
  if (most == 0 || state.started || shares_.num_places(state.group->tenant) == 0) return false;
  return TenantCharges::Exceeds(blocks_.charges().Charge(state.group->payer), most);
}

bool Scheduler::IsAtQuota(const State& state, int64_t end) const {
  const int32_t most = state.group->max_blocks;
  int64_t more = 0;
  if (state.runs_beams()) {
    more = blocks_.GrowthTogether(state.beam_ids, end).num_blocks;
  } else {
    const TableShift shift = state.ShiftDue();
    const int64_t num_tokens = state.PositionOf(end) - shift.count;
    more = blocks_.NumBlocksToGrow(state.sequence->id, num_tokens, shift);
  }
  if (more <= 0) return false;
  const double charge = blocks_.charges().Charge(state.group->payer);
  if (!TenantCharges::Exceeds(charge + static_cast<double>(more), most)) return false;
  for (const State* other : running_) {
    if (other->group->tenant == state.group->tenant && !other->stalled()) return other != &state;
  }
  return false;
}

}  // namespace quire::engine
