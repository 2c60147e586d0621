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
    const State& first = tenant.turns.top();
    return std::tuple(-first.priority, tenant.served, first.deadline, first.order);
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

void Scheduler::Waiting::Enter(State& state) {
  if (state.started) return preempted_.Push(state);
  fresh_.Push(state);
  if (state.priority < 0) rising_.Push(state);
  const auto id = static_cast<size_t>(state.group->tenant);
  if (id >= tenants_.size()) tenants_.resize(id + 1);
  Tenant& tenant = tenants_[id];
  if (tenant.turns.empty()) tenant.served = shares_.served(state.group->tenant);
  tenant.turns.Push(state);
  if (!tenant.is_held) Place(tenant);
}

void Scheduler::Waiting::Leave(State& state) {
  if (state.started) return preempted_.Remove(state);
  fresh_.Remove(state);
  if (rising_.Contains(state)) rising_.Remove(state);
  Tenant& tenant = tenants_[static_cast<size_t>(state.group->tenant)];
  // A tenant without sequences cannot be compared.
  if (tenant.turns.size() == 1 && !tenant.is_held) by_share_.Remove(tenant);
  tenant.turns.Remove(state);
  if (!tenant.turns.empty() && !tenant.is_held) Place(tenant);
}

void Scheduler::Waiting::Hold(TenantShares::TenantId id) {
  Tenant& tenant = tenants_[static_cast<size_t>(id)];
  by_share_.Remove(tenant);
  tenant.is_held = true;
}

void Scheduler::Waiting::Free(TenantShares::TenantId id) {
  if (static_cast<size_t>(id) >= tenants_.size()) return;
  Tenant& tenant = tenants_[static_cast<size_t>(id)];
  if (!std::exchange(tenant.is_held, false) || tenant.turns.empty()) return;
  tenant.served = shares_.served(id);
  Place(tenant);
}

void Scheduler::Waiting::Place(Tenant& tenant) {
  if (by_share_.Contains(tenant)) {
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
    if (!tenant.is_held) Place(tenant);
  }
}

void Scheduler::Waiting::NoteCharged(TenantShares::TenantId tenant) {
  const auto id = static_cast<size_t>(tenant);
  if (id >= tenants_.size() || tenants_[id].turns.empty() || tenants_[id].was_charged) return;
  tenants_[id].was_charged = true;
  charged_.push_back(tenant);
}

Scheduler::State* Scheduler::Waiting::Next(bool by_age) {
  if (!preempted_.empty()) return &preempted_.top();
  if (by_share_.empty()) return nullptr;
  if (by_age && !tenants_[static_cast<size_t>(fresh_.top().group->tenant)].is_held) {
    return &fresh_.top();
  }
  for (const TenantShares::TenantId id : charged_) {
    Tenant& tenant = tenants_[static_cast<size_t>(id)];
    tenant.was_charged = false;
    if (tenant.turns.empty() || tenant.is_held) continue;
    tenant.served = shares_.served(id);
    by_share_.Update(tenant);
  }
  charged_.clear();
  return &by_share_.top().turns.top();
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
