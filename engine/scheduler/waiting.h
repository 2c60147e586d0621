#pragma once

// The waiting sequences, indexed so that a step finds the next in turn, and those whose time is
// over, without visiting all of them. Included only by the scheduler's own .cc files.

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"

#include "engine/scheduler/indexed_heap.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/tenant_shares.h"

namespace quire::engine {

// Each is either in turn or stalled; a stalled one is left out until its sink has room. All calls
// are O(log waiting).
class Scheduler::Waiting {
 public:
  // `shares` must outlive this.
  Waiting(const TenantShares& shares, absl::Duration stalled_stream_timeout)
      : shares_(shares), stalled_stream_timeout_(stalled_stream_timeout) {}

  void Add(State& state);  // in turn
  void Remove(State& state);
  void Stall(State& state);
  void Resume(State& state);
  bool IsStalled(const State& state) const { return state.is_out_of_turn; }
  // To be called after its stalled_since has changed.
  void UpdateDue(State& state);
  // Hold takes a tenant's new sequences out of turn, because it has all the places that it may
  // have, until Free.
  void Hold(TenantShares::TenantId tenant);
  void Free(TenantShares::TenantId tenant);
  // To be called after the tenant was charged.
  void NoteCharged(TenantShares::TenantId tenant);

  // The next in turn: the oldest preempted one if there is any; else the first by priority, the
  // tenant's share, deadline and arrival, or, `by_age`, the oldest. Null when none is in turn.
  State* Next(bool by_age);
  // The first `n` new ones of a tenant that are in turn, in order.
  void FirstOf(TenantShares::TenantId tenant, size_t n, std::vector<State*>& out);
  // One whose deadline or stall ends by `now`; null when there is none.
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
  // Orders the new sequences of one tenant.
  struct TurnFirst {
    bool operator()(const State& a, const State& b) const;
  };
  // The new ones of one tenant that are in turn.
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

  void Enter(State& state);  // its turn
  void Leave(State& state);
  void Place(Tenant& tenant);
  absl::Time DueOf(const State& state) const;

  const TenantShares& shares_;
  const absl::Duration stalled_stream_timeout_;
  IndexedHeap<State, &State::age_place, OlderFirst> preempted_;
  IndexedHeap<State, &State::age_place, OlderFirst> fresh_;
  std::deque<Tenant> tenants_;  // by id; in by_share_ if not held and with fresh ones
  IndexedHeap<Tenant, &Tenant::place, TenantFirst> by_share_;
  std::vector<TenantShares::TenantId> charged_;
  IndexedHeap<State, &State::due_place, DueFirst> due_;  // those with a deadline or a stall
  int64_t size_ = 0;
  int64_t num_stalled_ = 0;
};

}  // namespace quire::engine
