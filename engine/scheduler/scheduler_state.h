#pragma once

// The scheduler's records of each sequence, request and step. Included only by the scheduler's own
// .cc files.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/scheduler/indexed_heap.h"
#include "engine/scheduler/prompt_lookup.h"
#include "engine/scheduler/scheduler.h"

namespace quire::engine {

// A step takes as long as its misses of the CPU cache. So the records of a sequence begin with what
// each step reads, and the members are in the order in which the step reads them.

// The record of one request, shared by the request's sequences.
struct alignas(64) Scheduler::Group {
  std::shared_ptr<Request> request;
  TokenSink* sink = nullptr;  // the request's
  TenantShares::TenantId tenant = -1;
  TenantCharges::Payer payer = TenantCharges::kNamelessPayer;  // for its blocks: the tenant
  int32_t max_blocks = 0;        // that the tenant may hold; 0: no limit
  int32_t deltas_in_flight = 0;  // deltas that steps in flight will put into the sink

  int32_t num_left = 0;      // sequences that have not ended
  bool has_started = false;  // a sequence of it has run
  PinId on = kNoPin;         // the pin of its named prefix
  std::string root_key;      // key of a root of the prefix cache
};

// A sequence makes way for the starts of other tenants at most once until it has made so many
// tokens.
inline constexpr int64_t kTokensBetweenClaims = 64;

// The record of one sequence. In the comments on members, "it" is this sequence.
struct alignas(64) Scheduler::State {
  enum class Phase : uint8_t { kWaiting, kRunning, kEnded };

  std::shared_ptr<Sequence> sequence;
  std::shared_ptr<Group> group;
  const Request* group_request = nullptr;  // the group's
  int64_t num_planned = 0;                 // leading tokens with K and V: computed, or in flight
  absl::Time deadline;                     // of the request

  absl::Time stalled_since = absl::InfiniteFuture();  // since its sink is full; infinite: it is not
  SequenceId id = 0;                                  // the sequence's
  Phase phase = Phase::kWaiting;
  // True once the sequence has run or was forked. A started sequence that waits again is in turn
  // before all of its tenant's that have not started.
  bool started = false;
  bool forked = false;   // it stands for one sample, not for n
  bool is_void = false;  // a row of its logits was no probability distribution
  // Copies of what the request says.
  bool is_scoring = false;
  bool has_beams = false;
  bool has_window = false;
  bool wants_prompt_logprobs = false;
  bool is_cancelled = false;     // as its request is; see Reconsider
  bool has_uncommitted = false;  // not all that it computed is committed; see CommitRest
  // The most tokens that steps in flight will draw; before the fork, 0 or n.
  int32_t unsampled = 0;
  int32_t in_flight = 0;     // entries in steps in flight
  int32_t sample_index = 0;  // index of its token in SampledTokens of last_step
  // The number of preemptions so far. Entries planned before the last preemption have lost their K
  // and V.
  int32_t num_holds = 0;
  int64_t last_step = -1;  // the last step that planned it
  int64_t num_known = 0;   // leading tokens that were ever computed or cached; not drafts

  int64_t prompt_len = 0;
  int64_t most_tokens = 0;    // those of the prompt and as many as the request may generate
  PinId pins = kNoPin;        // of the request
  bool leads = false;         // it computes tokens that others may follow; see Flights
  int32_t num_followers = 0;  // sequences whose `leader` is this one
  uint64_t order = 0;         // the order of arrival; a smaller value is older
  int64_t num_shifts = 0;     // shifts of its table since it started
  // Its table has room for tokens up to `room_end`, as long as no more blocks have been sealed
  // (BlockManager::num_seals) than `room_seals`.
  int64_t room_end = 0;
  int64_t room_seals = 0;

  // Most steps read none of the members below.
  //
  // The priority of the request, raised while the sequence waits for its first start; see Waiting.
  int32_t priority = 0;
  int32_t times_passed = 0;  // times that another sequence started before it out of turn
  // num_known when it last made way for the start of another tenant's sequence.
  int64_t known_at_claim = -kTokensBetweenClaims;
  int64_t num_uncached = 0;     // number of its uncached tokens when last counted
  int64_t num_uncached_in = 0;  // the call of Schedule that counted num_uncached; 0: none
  static constexpr int32_t kNoGuess = -1;
  PromptLookup lookup;        // empty until its first guess
  double guess_chance = 0.0;  // the chance that its next guess is right
  int32_t guess = kNoGuess;   // at the token that a step draws, where it was not drafted

  // Used by Flights.
  int64_t lead_end = 0;              // the number of its tokens that others may share
  int64_t next_overlap = INT64_MAX;  // at most the least `overlap` of its followers
  State* leader = nullptr;           // the sequence that it follows; null: none
  int64_t overlap = 0;               // it follows until the leader has so many tokens
  int64_t leaders_seen = 0;          // it was compared with so many leaders
  int32_t num_follows = 0;           // times that it began to follow

  // The beams of a search, once the prompt has been computed. The first beam is `sequence`. All
  // have equally many tokens, and in the cache as well: num_planned is that of each.
  std::vector<std::shared_ptr<Sequence>> beams;
  std::vector<SequenceId> beam_ids;
  std::vector<SampledToken> beam_tokens;  // of the step that is being completed
  std::vector<int32_t> beam_parents;      // scratch
  int64_t num_joint = 0;  // after a preemption, the leading tokens that all beams have in common

  // Used by Waiting.
  enum class Turn : uint8_t { kIn, kStalled, kFollows, kAside };
  Turn turn = Turn::kIn;
  absl::Time due_at;
  absl::Time rises_at;  // when its priority rises next
  HeapPlace age_place = kNotInHeap;
  HeapPlace turn_place = kNotInHeap;
  HeapPlace due_place = kNotInHeap;
  HeapPlace rise_place = kNotInHeap;

  // Begin to load what a step reads of the sequence; see PrefetchAhead.
  void Prefetch() const {
    for (size_t i = 0; i < kHotBytes; i += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(this) + i, 1);
    }
  }
  static constexpr size_t kHotBytes = 192;

  const Request& request() const { return *group_request; }
  // True once it has its beams.
  bool made_beams() const { return has_beams && !beams.empty(); }
  // True if its beams run.
  bool runs_beams() const { return forked && made_beams(); }
  // Returns the number of its places.
  int32_t num_samples() const {
    return forked && !made_beams() ? 1 : request().params.sampling.num_sequences();
  }
  const CacheWindow& window() const {
    static constexpr CacheWindow kNone;
    return has_window ? request().cache_window : kNone;
  }
  // Returns the place in the cache of the token at `index`, if no shift is due before that token.
  int64_t PositionOf(int64_t index) const {
    return has_window ? index - num_shifts * window().drop : index;
  }
  // Returns the shift to apply before the next token is planned; count 0: none.
  TableShift ShiftDue() const {
    if (!has_window) return {};
    const bool due = window().NumShifts(num_planned) > num_shifts;
    return {.first = window().sinks, .count = due ? window().drop : 0};
  }
  // Returns the number of tokens to compute. Beams that come back after a preemption have to
  // compute those that they have in common, until these are computed.
  int64_t num_tokens() const {
    return made_beams() && !forked ? num_joint : std::ssize(sequence->tokens);
  }
  bool stalled() const { return stalled_since != absl::InfiniteFuture(); }
  bool older_than(const State& other) const { return order < other.order; }

  // Returns the tokens that a scoring request gives for the sample; null if tokens are drawn.
  const TokenIds* continuation() const {
    return is_scoring ? &request().continuation_ids[sequence->sample_index] : nullptr;
  }

  // True if, after the fork, exactly one token is left to plan. It is on the host or still in
  // flight.
  bool IsDecode() const { return forked && num_tokens() + unsampled - num_planned == 1; }
  // True if nothing can be planned before the token in flight arrives, because that token reaches
  // max_tokens, forks the samples, or opens a continuation.
  bool AwaitsToken() const {
    if (unsampled == 0) return false;
    if (made_beams()) return true;  // any beam's tokens may become another's
    return !forked || is_scoring || num_tokens() + unsampled >= most_tokens;
  }
  // Returns the index from which on the row of every token needs logits, or nullopt if no row needs
  // them. Before the fork, the index is 0 if logprobs of the prompt are wanted. After the fork of a
  // scoring request, the index is the end of the prompt, where the continuation begins.
  std::optional<int64_t> first_row() const {
    if (forked && is_scoring) return prompt_len;
    if (!forked && wants_prompt_logprobs) return 0;
    return std::nullopt;
  }
  // Returns the number of rows at or after first_row() among the next `num_tokens` to plan.
  int32_t NumRows(int64_t num_tokens) const {
    const std::optional<int64_t> first = first_row();
    if (!first) return 0;
    const int64_t rows = num_planned + num_tokens - std::max(num_planned, *first);
    return static_cast<int32_t>(std::max<int64_t>(rows, 0));
  }
};

// The record of one step in flight.
struct Scheduler::InFlight {
  struct Item {
    State* state = nullptr;
    int32_t num_holds = 0;   // the state's num_holds when the entry was planned
    int32_t num_deltas = 0;  // deltas promised to the sink
  };
  int64_t step = 0;
  std::vector<Item> items;  // by plan entry
};

// The part of a step's limits that is not planned yet.
struct Scheduler::Budget {
  int32_t tokens = 0;
  int32_t logit_rows = 0;  // of prompts, continuations and drafts
};

// What remains to be drafted in a step, and what the step has.
struct Scheduler::Drafting {
  int32_t most = 0;     // tokens of further drafts
  int32_t rows = 0;     // decodes and drafts, planned or to be planned
  double tokens = 0.0;  // that these rows are expected to yield
};

// A tenant whose level is above this one is beyond its part. Levels are quotients, so they may
// differ by their rounding.
inline constexpr double kPart = 1.0 + 1e-9;

// A part of a step's budget that is kept for the prompts of one tenant.
struct Scheduler::TenantBudget {
  TenantShares::TenantId tenant = -1;
  int32_t priority = 0;
  int32_t num_prompts = 0;  // that run and are not planned yet; 0: the first is to start
  Budget wanted;
  Budget kept;
};

// The tenant's next sequence in turn did not fit when BlockManager::room() was `below`. It is tried
// again if there is more room, after num_schedules_ has come to `until`, or when num_openings_ has
// grown.
struct Scheduler::Bar {
  int64_t below = 0;
  int64_t until = 0;
  int64_t num_openings = 0;
};

// These functions are asked about each decode.

inline bool Scheduler::SinkHasRoom(const State& state, int32_t num_deltas) {
  return state.group->sink->CanTake(state.group->deltas_in_flight + num_deltas);
}

inline bool Scheduler::SinkCanTake(State& state, int32_t num_deltas, absl::Time now) {
  if (!SinkHasRoom(state, num_deltas)) {
    NoteStalled(state, now);
    return false;
  }
  if (state.stalled()) state.stalled_since = absl::InfiniteFuture();
  return true;
}

inline bool Scheduler::WaitsForQuota(const State& state, int64_t end) const {
  return state.group->max_blocks > 0 && IsAtQuota(state, end);
}

inline bool Scheduler::HasRoom(const State& state, int64_t end) const {
  return end <= state.room_end && state.room_seals == blocks_.num_seals();
}

// A loop over sequences calls this for the i-th of `n`. state_of(k) returns the k-th. Begins to
// load what the planning of a decode (`completes`: its completion) touches of the sequences to
// come, in the order in which one address leads to the next. With hundreds of sequences a step
// would otherwise be one miss of the CPU cache after another.
template <typename StateOf>
void Scheduler::PrefetchAhead(size_t i, size_t n, bool completes, StateOf state_of) const {
  using Part = BlockManager::Part;
  // A decode that has room touches no blocks.
  const auto prefetch_blocks = [this](const State& state, Part part) {
    if (!HasRoom(state, state.num_planned + 1)) blocks_.Prefetch(state.id, part);
  };
  if (i + 12 < n) state_of(i + 12)->Prefetch();
  if (i + 8 < n) {
    const State& state = *state_of(i + 8);
    __builtin_prefetch(state.sequence.get(), 1);
    __builtin_prefetch(state.group.get(), 1);
    if (!completes) prefetch_blocks(state, Part::kRecord);
  }
  if (i + 5 < n) {
    const State& state = *state_of(i + 5);
    const std::vector<int32_t>& tokens = state.sequence->tokens;
    if (completes) {
      __builtin_prefetch(tokens.data() + tokens.size(), 1);
    } else {
      prefetch_blocks(state, Part::kTable);
    }
  }
  if (i + 2 < n && !completes) prefetch_blocks(*state_of(i + 2), Part::kLastCounts);
}

}  // namespace quire::engine
