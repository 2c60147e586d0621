#pragma once

// Holds the waiting sequences, indexed so that a step need not visit all of them. The index finds
// the next sequence in turn, and the sequences that are past their deadline or have stalled too
// long. Included only by the scheduler's own .cc files.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"

#include "engine/scheduler/indexed_heap.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/tenant_shares.h"

namespace quire::engine {

// A new sequence whose priority is below 0 rises by one for each kRiseTime that it has waited, up
// to 0. So background work gets its turn beside work of priority 0, and never before such work.
//
// Only sequences in turn can start. A waiting sequence is in turn, unless it is stalled, it follows
// another, it is new and its tenant is held (see Hold), or it or its tenant is set aside. Most
// calls are O(log waiting); FirstOf is O(n^2).
class Scheduler::Waiting {
 public:
  static constexpr absl::Duration kRiseTime = absl::Seconds(10);

  // `shares` must outlive this.
  Waiting(const TenantShares& shares, absl::Duration stalled_stream_timeout)
      : shares_(shares), stalled_stream_timeout_(stalled_stream_timeout) {}

  void Add(State& state);  // puts it in turn
  void Remove(State& state);
  void Stall(State& state);
  void Resume(State& state);
  bool IsStalled(const State& state) const { return state.turn == State::Turn::kStalled; }
  // Takes it out of turn while it follows another sequence (see Flights), and puts it back.
  void Follow(State& state);
  void Return(State& state);
  // To be called after stalled_since of the sequence has changed.
  void UpdateDue(State& state);
  // Hold takes a tenant's new sequences out of turn, because the tenant has all the places or
  // blocks that it may have. Free puts them back.
  void Hold(TenantShares::TenantId tenant);
  void Free(TenantShares::TenantId tenant);
  bool IsHeld(TenantShares::TenantId tenant) const {
    return tenants_[static_cast<size_t>(tenant)].is_held;
  }
  // Takes a sequence, or all of a tenant's, out of turn until RestoreAside, because it may not
  // start in the step that is being planned.
  void SetAside(State& state);
  void SetAside(TenantShares::TenantId tenant);
  void RestoreAside();
  bool IsAside(TenantShares::TenantId tenant) const {
    return tenants_[static_cast<size_t>(tenant)].is_aside;
  }
  // True if the tenant with the oldest sequence in turn is set aside.
  bool OldestIsAside() const { return !by_age_.empty() && IsAside(by_age_.top().group->tenant); }
  // True if a sequence of another tenant is in turn as well.
  bool CompetesWithOthers() const { return by_share_.size() > 1; }
  // To be called after the tenant was charged.
  void NoteCharged(TenantShares::TenantId tenant);

  // Raises the priorities that are due at `now`.
  void Rise(absl::Time now);
  // Returns the next sequence in turn; null when none is in turn. With `by_age`, it is one of the
  // tenant with the oldest sequence, if that tenant is in turn. Otherwise it is one of the first
  // tenant by priority, share, deadline and arrival. The tenant's preempted sequences come first,
  // the oldest before the others. Its new ones follow by priority, deadline and arrival; with
  // `by_age` the oldest of all is next.
  State* Next(bool by_age);
  // Sets `out` to the first sequence of each of the first `n` tenants in turn.
  void FirstOfTenants(size_t n, std::vector<State*>& out);
  // Sets `out` to the first `n` new sequences of a tenant, in the order of their turns.
  void FirstOf(TenantShares::TenantId tenant, size_t n, std::vector<State*>& out);
  // Returns a sequence that, at `now`, is past its deadline or has been stalled for
  // stalled_stream_timeout; null when there is none.
  State* Due(absl::Time now) const;
  absl::Time next_due() const;

  int64_t size() const { return size_; }
  int64_t num_stalled() const { return num_stalled_; }

 private:
  struct OlderFirst {
    bool operator()(const State& a, const State& b) const { return a.older_than(b); }
  };
  struct DueFirst {
    bool operator()(const State& a, const State& b) const { return a.due_at < b.due_at; }
  };
  struct RisesFirst {
    bool operator()(const State& a, const State& b) const { return a.rises_at < b.rises_at; }
  };
  // Orders the new sequences of one tenant.
  struct TurnFirst {
    bool operator()(const State& a, const State& b) const;
  };
  // The sequences of one tenant that are in turn.
  struct Tenant {
    IndexedHeap<State, &State::turn_place, OlderFirst> preempted;
    IndexedHeap<State, &State::turn_place, TurnFirst> turns;  // new ones
    double served = 0;
    bool is_held = false;
    bool is_aside = false;
    bool was_charged = false;  // `served` is out of date
    HeapPlace place = kNotInHeap;

    bool has_new() const { return !is_held && !turns.empty(); }
    bool is_in_turn() const { return !is_aside && (!preempted.empty() || has_new()); }
    State& first() const { return preempted.empty() ? turns.top() : preempted.top(); }
    // A sequence that was preempted does not hold up urgent ones behind it.
    int32_t priority() const {
      return has_new() ? std::max(first().priority, turns.top().priority) : first().priority;
    }
  };
  struct TenantFirst {
    bool operator()(const Tenant& a, const Tenant& b) const;
  };

  void Enter(State& state);  // puts it in turn
  void Leave(State& state);
  Tenant& TenantOf(const State& state);
  void Place(Tenant& tenant);  // in by_share_, or not
  absl::Time DueOf(const State& state) const;

  const TenantShares& shares_;
  const absl::Duration stalled_stream_timeout_;
  IndexedHeap<State, &State::age_place, OlderFirst> by_age_;
  std::deque<Tenant> tenants_;  // by id; in by_share_ if is_in_turn()
  IndexedHeap<Tenant, &Tenant::place, TenantFirst> by_share_;
  std::vector<TenantShares::TenantId> charged_;
  std::vector<Tenant*> first_;  // scratch of FirstOfTenants
  std::vector<State*> aside_;
  std::vector<TenantShares::TenantId> tenants_aside_;
  IndexedHeap<State, &State::due_place, DueFirst> due_;  // sequences with a deadline or a stall
  IndexedHeap<State, &State::rise_place, RisesFirst> rising_;  // new, in turn, priority below 0
  int64_t size_ = 0;
  int64_t num_stalled_ = 0;
};

}  // namespace quire::engine
