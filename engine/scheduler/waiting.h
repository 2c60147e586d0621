#pragma once

// Holds the waiting sequences, indexed so that a step need not visit all of them. The index finds
// the next sequence in turn, and the sequences that are past their deadline or have stalled too
// long. Included only by the scheduler's own .cc files.

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
// another, or it is new and its tenant is held (see Hold). Most calls are O(log waiting); FirstOf
// is O(n^2).
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
  // To be called after the tenant was charged.
  void NoteCharged(TenantShares::TenantId tenant);

  // Raises the priorities that are due at `now`.
  void Rise(absl::Time now);
  // Returns the next sequence in turn; null when none is in turn. If sequences were preempted, the
  // oldest of them is next. Otherwise, with `by_age`, the oldest sequence is next, unless its
  // tenant is held. Otherwise the first sequence by priority, tenant's share, deadline and arrival
  // is next.
  State* Next(bool by_age);
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
  // The new sequences of one tenant that are in turn.
  struct Tenant {
    IndexedHeap<State, &State::turn_place, TurnFirst> turns;
    double served = 0;
    bool is_held = false;
    bool was_charged = false;  // `served` is out of date
    HeapPlace place = kNotInHeap;
  };
  struct TenantFirst {
    bool operator()(const Tenant& a, const Tenant& b) const;
  };

  void Enter(State& state);  // puts it in turn
  void Leave(State& state);
  void Place(Tenant& tenant);
  absl::Time DueOf(const State& state) const;

  const TenantShares& shares_;
  const absl::Duration stalled_stream_timeout_;
  IndexedHeap<State, &State::age_place, OlderFirst> preempted_;
  IndexedHeap<State, &State::age_place, OlderFirst> fresh_;
  std::deque<Tenant> tenants_;  // by id; in by_share_ if not held and with new sequences
  IndexedHeap<Tenant, &Tenant::place, TenantFirst> by_share_;
  std::vector<TenantShares::TenantId> charged_;
  IndexedHeap<State, &State::due_place, DueFirst> due_;  // sequences with a deadline or a stall
  IndexedHeap<State, &State::rise_place, RisesFirst> rising_;  // new, in turn, priority below 0
  int64_t size_ = 0;
  int64_t num_stalled_ = 0;
};

}  // namespace quire::engine
