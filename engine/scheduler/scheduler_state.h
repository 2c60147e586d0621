#pragma once

// The scheduler's records of each sequence, request and step. Included only by its own .cc files.

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
  int32_t deltas_in_flight = 0;  // that steps in flight will hand to its sink
};

struct Scheduler::State {
  enum class Phase : uint8_t { kWaiting, kRunning, kEnded };

  std::shared_ptr<Sequence> sequence;
  std::shared_ptr<Group> group;
  uint64_t order = 0;  // of arrival; a smaller one is older
  Phase phase = Phase::kWaiting;
  bool started = false;   // it has run before; if it waits, it was preempted
  bool forked = false;    // its prompt has been sampled: it is one sequence, not n
  bool is_void = false;   // one of its rows was no distribution
  int32_t num_holds = 0;  // preemptions so far: entries planned before the last have lost their KV
  int32_t in_flight = 0;  // entries in steps in flight
  int32_t unsampled = 0;  // tokens that those will draw for it: 0, 1, or n before the fork
  int32_t sample_index = 0;     // of its token in the last step's SampledTokens
  int64_t num_planned = 0;      // leading tokens with K and V: computed, or in flight
  int64_t num_known = 0;        // leading tokens that were computed or cached before
  int64_t num_shifts = 0;       // of its table, since it started
  int64_t last_step = -1;       // the last step that planned it
  int32_t times_passed = 0;     // by shorter ones after it in turn, before it started
  int64_t num_uncached = 0;     // its uncached tokens, when last counted
  int64_t num_uncached_in = 0;  // the call of Schedule that counted; 0: none

  // Used by Waiting.
  bool is_out_of_turn = false;
  absl::Time due_at;
  HeapPlace age_place = kNotInHeap;
  HeapPlace turn_place = kNotInHeap;
  HeapPlace due_place = kNotInHeap;

  const Request& request() const { return *group->request; }
  int32_t num_samples() const { return forked ? 1 : request().params.sampling.n; }
  const CacheWindow& window() const { return group->request->cache_window; }
  // The place in the cache of the token at `index`, which is planned or comes next without a shift.
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

  // True if one token is left to plan and it was sampled; it is on the host or still in flight.
  bool IsDecode() const { return forked && num_tokens() + unsampled - num_planned == 1; }
  // True if nothing can be planned before the token in flight arrives: it reaches max_tokens, forks
  // the samples, or opens a continuation.
  bool AwaitsToken() const {
    if (unsampled == 0) return false;
    return !forked || request().is_scoring() ||
           sequence->num_generated() + unsampled >= request().max_tokens;
  }
  // The position from which every row needs logits: of the prompt, before the fork only, when its
  // logprobs are asked for; of a continuation.
  std::optional<int64_t> first_row() const {
    if (forked && request().is_scoring()) return sequence->prompt_len();
    if (!forked && request().params.output.prompt_logprobs.has_value()) return 0;
    return std::nullopt;
  }
  // Rows at or after first_row() among the next `num_tokens` to plan.
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
