#pragma once

// What the scheduler remembers of each sequence, request and step. For its own .cc files.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/scheduler/indexed_heap.h"
#include "engine/scheduler/scheduler.h"

namespace quire::engine {

struct Scheduler::Group {
  std::shared_ptr<Request> request;
  std::string root_key;  // of the prefix cache
  TenantShares::TenantId tenant = -1;
  int32_t num_left = 0;          // sequences with the scheduler
  int32_t deltas_in_flight = 0;  // that its sink will be handed by steps in flight
};

struct Scheduler::State {
  enum class Phase : uint8_t { kWaiting, kRunning, kEnded };

  std::shared_ptr<Sequence> sequence;
  std::shared_ptr<Group> group;
  uint64_t order = 0;  // of arrival; a smaller one is older
  Phase phase = Phase::kWaiting;
  bool started = false;   // it has run before: waiting, it is a preempted one
  bool forked = false;    // its prompt has been sampled: it is one sequence, not n
  bool is_void = false;   // a row of it was no distribution
  int32_t num_holds = 0;  // preemptions so far: entries planned before the last have lost their KV
  int32_t in_flight = 0;  // entries in steps in flight
  int32_t unsampled = 0;  // tokens that those will draw for it: 0, 1, or n before the fork
  int32_t sample_index = 0;  // of its one in the SampledTokens of the step planned last
  int64_t num_planned = 0;   // leading tokens with K and V: computed, or in flight
  int64_t num_known = 0;   // leading tokens that were computed or cached once: again is recomputing
  int64_t num_shifts = 0;  // of its table, since it started
  int64_t last_step = -1;  // it was planned in
  int32_t times_passed = 0;     // by shorter ones behind it, before it started
  int64_t num_uncached = 0;     // of its tokens, when that was counted last
  int64_t num_uncached_in = 0;  // that call of Schedule; 0: never

  // Of Waiting.
  bool is_out_of_turn = false;
  absl::Time due_at;
  HeapPlace age_place = kNotInHeap;
  HeapPlace turn_place = kNotInHeap;
  HeapPlace due_place = kNotInHeap;

  const Request& request() const { return *group->request; }
  int32_t num_samples() const { return forked ? 1 : request().params.sampling.n; }
  const CacheWindow& window() const { return group->request->cache_window; }
  // Where the token at `index`, planned or to be planned next without a shift, stands in the cache.
  int64_t PositionOf(int64_t index) const { return index - num_shifts * window().drop; }
  // The shift that its table must have before the next token is planned.
  TableShift ShiftDue() const {
    const bool due = window().NumShifts(num_planned) > num_shifts;
    return {.first = window().sinks, .count = due ? window().drop : 0};
  }
  int64_t num_tokens() const { return static_cast<int64_t>(sequence->tokens.size()); }
  bool stalled() const { return sequence->stalled_since != absl::InfiniteFuture(); }
  bool older_than(const State& other) const { return order < other.order; }

  // The tokens that a scoring request gives for it; null for one that draws them.
  const TokenIds* continuation() const {
    return request().is_scoring() ? &request().continuation_ids[sequence->sample_index] : nullptr;
  }

  // What is left to plan are the tokens known, on the host or in flight. A decode: just the last
  // one, and it was sampled.
  bool IsDecode() const { return forked && num_tokens() + unsampled - num_planned == 1; }
  // The token in flight reaches max_tokens, forks, or brings a continuation: nothing to plan until
  // it is here.
  bool AwaitsToken() const {
    if (unsampled == 0) return false;
    return !forked || request().is_scoring() ||
           sequence->num_generated() + unsampled >= request().max_tokens;
  }
  // Every row from this position on needs logits: of the prompt when they are asked for, the first
  // time only; of a continuation.
  std::optional<int64_t> first_row() const {
    if (forked && request().is_scoring()) return sequence->prompt_len();
    if (!forked && request().params.output.prompt_logprobs.has_value()) return 0;
    return std::nullopt;
  }
  // Of `num_tokens` from the next one to plan.
  int32_t NumRows(int64_t num_tokens) const {
    if (!first_row()) return 0;
    const int64_t rows = num_planned + num_tokens - std::max(num_planned, *first_row());
    return static_cast<int32_t>(std::max<int64_t>(rows, 0));
  }
};

struct Scheduler::InFlight {
  struct Item {
    State* state = nullptr;
    int32_t num_holds = 0;   // the state's, when it was planned
    int32_t num_deltas = 0;  // promised to its sink
  };
  int64_t step = 0;
  std::vector<Item> items;  // by plan entry
};

struct Scheduler::Budget {
  int32_t tokens = 0;
  int32_t logit_rows = 0;  // of prompts and continuations
};

}  // namespace quire::engine
