#include "engine/scheduler/waiting.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace quire::engine {

bool Scheduler::Waiting::TurnFirst::operator()(const State& a, const State& b) const {
  const auto key = [](const State& s) { return std::tuple(-s.priority, s.deadline, s.order); };
  return key(a) < key(b);
}

bool Scheduler::Waiting::TenantFirst::operator()(const Tenant& a, const Tenant& b) const {
  const auto key = [](const Tenant& tenant) {
    const State& first = tenant.first();
    return std::tuple(-tenant.priority(), tenant.served, first.deadline, first.order);
  };
  return key(a) < key(b);
}

void Scheduler::Waiting::Add(State& state) {
  ++size_;
  state.turn = State::Turn::kIn;
  Enter(state);
  UpdateDue(state);
}

void Scheduler::Waiting::Remove(State& state) {
  --size_;
  if (state.turn == State::Turn::kIn) Leave(state);
  if (state.turn == State::Turn::kStalled) --num_stalled_;
  if (due_.Contains(state)) due_.Remove(state);
}

void Scheduler::Waiting::Stall(State& state) {
  Leave(state);
  state.turn = State::Turn::kStalled;
  ++num_stalled_;
  UpdateDue(state);
}

void Scheduler::Waiting::Resume(State& state) {
  --num_stalled_;
  state.turn = State::Turn::kIn;
  Enter(state);
  UpdateDue(state);
}

void Scheduler::Waiting::Follow(State& state) {
  Leave(state);
  state.turn = State::Turn::kFollows;
}

void Scheduler::Waiting::Return(State& state) {
  state.turn = State::Turn::kIn;
  Enter(state);
}

void Scheduler::Waiting::SetAside(State& state) {
  Leave(state);
  state.turn = State::Turn::kAside;
  aside_.push_back(&state);
}

void Scheduler::Waiting::SetAside(TenantShares::TenantId id) {
  Tenant& tenant = tenants_[static_cast<size_t>(id)];
  if (std::exchange(tenant.is_aside, true)) return;
  tenants_aside_.push_back(id);
  Place(tenant);
}

void Scheduler::Waiting::RestoreAside() {
  for (State* state : aside_) Return(*state);
  aside_.clear();
  for (const TenantShares::TenantId id : tenants_aside_) {
    Tenant& tenant = tenants_[static_cast<size_t>(id)];
    tenant.is_aside = false;
    tenant.served = shares_.served(id);
    Place(tenant);
  }
  tenants_aside_.clear();
}

Scheduler::Waiting::Tenant& Scheduler::Waiting::TenantOf(const State& state) {
  const auto id = static_cast<size_t>(state.group->tenant);
  if (id >= tenants_.size()) tenants_.resize(id + 1);
  return tenants_[id];
}

void Scheduler::Waiting::Enter(State& state) {
  Tenant& tenant = TenantOf(state);
  if (tenant.turns.empty() && tenant.preempted.empty()) {
    tenant.served = shares_.served(state.group->tenant);
  }
  by_age_.Push(state);
  if (state.started) {
    tenant.preempted.Push(state);
  } else {
    tenant.turns.Push(state);
    if (state.priority < 0) rising_.Push(state);
  }
  Place(tenant);
}

void Scheduler::Waiting::Leave(State& state) {
  Tenant& tenant = TenantOf(state);
  by_age_.Remove(state);
  if (state.started) {
    tenant.preempted.Remove(state);
  } else {
    tenant.turns.Remove(state);
    if (rising_.Contains(state)) rising_.Remove(state);
  }
  Place(tenant);
}

void Scheduler::Waiting::Hold(TenantShares::TenantId id) {
  Tenant& tenant = tenants_[static_cast<size_t>(id)];
  tenant.is_held = true;
  Place(tenant);
}

void Scheduler::Waiting::Free(TenantShares::TenantId id) {
  if (static_cast<size_t>(id) >= tenants_.size()) return;
  Tenant& tenant = tenants_[static_cast<size_t>(id)];
  if (!std::exchange(tenant.is_held, false)) return;
  tenant.served = shares_.served(id);
  Place(tenant);
}

void Scheduler::Waiting::Place(Tenant& tenant) {
  if (!tenant.is_in_turn()) {
    if (by_share_.Contains(tenant)) by_share_.Remove(tenant);
  } else if (by_share_.Contains(tenant)) {
    by_share_.Update(tenant);
  } else {
    by_share_.Push(tenant);
  }
}

absl::Time Scheduler::Waiting::DueOf(const State& state) const {
  return std::min(state.deadline, state.stalled_since + stalled_stream_timeout_);
}

void Scheduler::Waiting::UpdateDue(State& state) {
  state.due_at = DueOf(state);
  if (state.due_at == absl::InfiniteFuture()) {
    if (due_.Contains(state)) due_.Remove(state);
  } else if (due_.Contains(state)) {
    due_.Update(state);
  } else {
    due_.Push(state);
  }
}

void Scheduler::Waiting::Rise(absl::Time now) {
  while (!rising_.empty() && rising_.top().rises_at <= now) {
    State& state = rising_.top();
    ++state.priority;
    state.rises_at += kRiseTime;
    if (state.priority < 0) {
      rising_.Update(state);
    } else {
      rising_.Remove(state);
    }
    Tenant& tenant = tenants_[static_cast<size_t>(state.group->tenant)];
    tenant.turns.Update(state);
    Place(tenant);
  }
}

void Scheduler::Waiting::NoteCharged(TenantShares::TenantId tenant) {
  const auto id = static_cast<size_t>(tenant);
  if (id >= tenants_.size() || !tenants_[id].is_in_turn() || tenants_[id].was_charged) return;
  tenants_[id].was_charged = true;
  charged_.push_back(tenant);
}

Scheduler::State* Scheduler::Waiting::Next(bool by_age) {
  if (by_share_.empty()) return nullptr;
  if (by_age) {
    const Tenant& tenant = TenantOf(by_age_.top());
    if (tenant.is_in_turn() && !tenant.preempted.empty()) return &tenant.preempted.top();
    if (tenant.is_in_turn()) return &by_age_.top();
  }
  for (const TenantShares::TenantId id : charged_) {
    Tenant& tenant = tenants_[static_cast<size_t>(id)];
    tenant.was_charged = false;
    tenant.served = shares_.served(id);
    if (by_share_.Contains(tenant)) by_share_.Update(tenant);
  }
  charged_.clear();
  return &by_share_.top().first();
}

void Scheduler::Waiting::FirstOfTenants(size_t n, std::vector<State*>& out) {
  by_share_.First(n, first_);
  out.clear();
  for (const Tenant* tenant : first_) out.push_back(&tenant->first());
}

void Scheduler::Waiting::FirstOf(TenantShares::TenantId tenant, size_t n,
                                 std::vector<State*>& out) {
  tenants_[static_cast<size_t>(tenant)].turns.First(n, out);
}

Scheduler::State* Scheduler::Waiting::Due(absl::Time now) const {
  return due_.empty() || due_.top().due_at > now ? nullptr : &due_.top();
}

absl::Time Scheduler::Waiting::next_due() const {
  return due_.empty() ? absl::InfiniteFuture() : due_.top().due_at;
}

}  // namespace quire::engine
