#pragma once

// Decides, once per step, which sequences run and how many tokens each gets.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "engine/kv/block_manager.h"
#include "engine/request/sequence.h"
#include "engine/scheduler/step_plan.h"
#include "engine/scheduler/tenant_shares.h"

namespace quire::engine {

struct SchedulerConfig {
  std::string model;  // the first part of the cache's root
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 512;  // at least max_num_seqs
  // The most prompt tokens of a step beside `num_decodes` decodes, at least 1. Called for each step
  // that has decodes. Empty: no such limit.
  std::function<int32_t(int32_t num_decodes)> prefill_limit;
  // The most rows of prompts and continuations whose logits one step may ask for. A plan has at
  // most max_num_seqs other logit rows.
  int32_t max_logit_rows = 64;
  int32_t pipeline_depth = 0;  // 0 or 1: how far Schedule may run ahead of Complete
  absl::Duration stalled_stream_timeout = absl::Seconds(30);
  // A start leaves this many blocks available for each running sequence, so that they can run on
  // for a while before one is preempted. Simulated with 1000 requests, 64 at once on a cache for 8:
  // 19 % of all tokens were recomputed with 0, 12 % with 1, 3 % with 3 (and 9 % more steps).
  int32_t headroom_blocks = 2;
  // One start in this many is the sequence that has waited longest, whatever the priorities and
  // shares.
  int32_t starts_per_oldest = 8;
};

// Why a sequence is no longer with the scheduler. All but kFinished have FinishReason::kAbort.
enum class EndCause : uint8_t {
  kFinished,   // a token, a length or a stop string ended it
  kCancelled,  // Request::cancelled, or Cancel()
  kDeadline,   // its request's deadline passed
  kStalled,    // its sink took nothing for stalled_stream_timeout
  kFailed,     // its step failed, or its token could not be drawn
};

struct FinishedSequence {
  // Shared with plans that still name it; nobody writes to it any more.
  std::shared_ptr<const Sequence> sequence;
  EndCause cause = EndCause::kFinished;
};

// Totals since the start. A prompt that was started and computed to its end adds exactly its length
// to prompt_tokens_cached + prompt_tokens_computed; recomputed tokens count in neither.
struct SchedulerStats {
  int64_t num_waiting = 0;  // sequences, now; preempted ones included
  int64_t num_running = 0;
  int64_t num_stalled = 0;
  int64_t num_steps = 0;
  int64_t scheduled_tokens = 0;
  int64_t prompt_tokens_computed = 0;
  int64_t prompt_tokens_cached = 0;
  int64_t recomputed_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t scored_tokens = 0;  // of continuations that were scored to their end
  int64_t num_preemptions = 0;
  int64_t num_overrun = 0;  // tokens planned for a sequence that had already ended
  int64_t num_tenants = 0;  // with sequences, now
};

// Among prompts that arrive within kTogether of each other the shortest may start first. One prompt
// is passed in this way at most kMostPasses times.
inline constexpr absl::Duration kTogether = absl::Milliseconds(100);
inline constexpr int32_t kMostPasses = 8;

// Continuous batching (Orca, OSDI 2022) with chunked prefill (Sarathi-Serve, arXiv:2403.02310):
// decodes are placed first, oldest first, so a long prompt cannot stall them; the rest of the token
// budget goes to prefills that run, then to new starts. When blocks run out, the sequence that is
// cheapest to bring back, among those younger than the one served, is preempted: its blocks are
// released and it is recomputed later. Stalled sequences of any age are preempted before them.
//
// After Schedule(): planned tokens <= max_num_batched_tokens, planned sequences <= max_num_seqs,
// each planned sequence holds blocks for all its tokens, and the oldest running one that is not
// stalled is planned, so nothing that runs starves (admission has refused any request that could
// not fit in an empty cache). At pipeline depth 1 it may wait one step for a victim's blocks, which
// the step in flight may still touch, or for the token that ends it.
//
// A waiting sequence starts when it has a place and when blocks for its whole context, one more
// block and the headroom are available (when nothing runs, it may fill the cache). The preempted
// start first, oldest first; then the order is priority (larger first), the tenant's share (fewest
// tokens served, VTC, arXiv:2401.00588), deadline (earliest first; none is last) and arrival.
// Exceptions:
// - Among sequences of one tenant and priority that arrive, and expire, within kTogether of the
//   next in turn, the one with the fewest tokens to compute starts first, if there are places for
//   its samples. Each one that it passes is passed in this way at most kMostPasses times.
// - One whose tenant has all the places that its limits allow is passed by those of other tenants.
// - Every starts_per_oldest'th start is the oldest, so with k older ones waiting a sequence starts
//   after at most starts_per_oldest * (k + 1) others.
// Nothing else passes a sequence that does not fit: all wait until it does.
//
// The prefix cache is searched when a sequence is first planned, not when it is added, so that it
// finds what earlier ones computed meanwhile. A request with n samples is one sequence, with n
// places, until its prompt is computed; Complete() then forks the others, and each is scheduled,
// preempted and ended on its own.
//
// A request with a cache window has its table shifted in the step whose first token would have no
// place otherwise; no chunk extends past such a token. So a token sees the same cache whatever the
// sizes of chunks, and also when it is recomputed.
//
// The samples of a scoring request are its continuations. At the fork each is given all its tokens
// but the last and is computed like a prompt, with logits for every row. It takes all its blocks at
// once, with its first token.
//
// Knows no tensor, no device; time is an argument. Not thread-safe; lives on the step thread.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, BlockManager& blocks);  // `blocks` must outlive this
  ~Scheduler();                                                    // releases all its blocks

  // Adds the first sequence of a request, with the prompt's tokens. The other n - 1 are forked from
  // it later, with ids id + 1 .. id + n - 1.
  void Add(std::unique_ptr<Sequence> sequence);

  // Empty when nothing can run now. First ends running sequences that were cancelled, and all that
  // are past their deadline or have stalled too long; TakeDropped() returns them. A plan that is
  // not empty must be completed (or failed), in order; up to pipeline_depth plans may be
  // outstanding when the next is made.
  StepPlan Schedule(absl::Time now);

  // Returns the sequences that finished. `sampled` holds the num_samples tokens of each plan entry,
  // in order. A token with a finish reason ends its sequence and is kept in it. With kAbort the
  // token is dropped; if it is_void, the tokens of this step are not listed for others either.
  // Entries of a sequence that ended meanwhile (its finish_reason is set) are overrun: their tokens
  // are dropped, and the caller must not show them.
  std::vector<FinishedSequence> Complete(const StepPlan& plan, const SampledTokens& sampled);
  // Instead of Complete, when the step could not run: ends every sequence in it (kFailed).
  std::vector<FinishedSequence> Fail(const StepPlan& plan);

  // Frees its blocks and ends it (kCancelled); NotFound once it has finished.
  absl::Status Cancel(SequenceId id);
  // Called when its request was cancelled or its sink has room again: ends the sequence or puts it
  // back in turn. A waiting sequence is checked only here, or when its time is over; a running one
  // at each step.
  void Reconsider(SequenceId id, absl::Time now);
  // The sequences that Schedule(), Cancel() and Reconsider() ended since the last call.
  std::vector<FinishedSequence> TakeDropped();

  // Lets the next plan reuse a completed plan's memory. Optional.
  void Recycle(StepPlan plan);

  bool HasWork() const { return !states_.empty() || !in_flight_.empty(); }
  // The time at which the next Schedule() could do more than the last without any event: the
  // earliest deadline or end of a stall. A step thread with nothing to run sleeps until then; other
  // events (a request, a cancellation, a sink with room again) wake it.
  absl::Time NextWakeup() const;

  SchedulerStats stats() const;
  // Also checks the blocks. Aborts on a difference.
  void CheckInvariants() const;

 private:
  struct Group;     // shared by the samples of one request
  struct State;     // one sequence
  struct InFlight;  // one step
  class Waiting;    // sequences that do not run

  // Ending sequences.
  void DropEnded(absl::Time now);
  EndCause CauseOf(State& state, absl::Time now);  // kFinished: it goes on
  FinishedSequence End(State& state, FinishReason reason, EndCause cause);

  // Planning a step.
  struct Budget;
  bool IsToOpen(const State& state) const;  // a forked continuation without its blocks
  void PlanDecodes(absl::Time now, Budget& budget, StepPlan& plan);
  void PlanPrefills(absl::Time now, Budget& budget, StepPlan& plan);
  void StartWaiting(absl::Time now, Budget& budget, StepPlan& plan);
  int32_t ChunkLimit(const State& state, const Budget& budget) const;
  bool TryPlanPrefill(State& state, absl::Time now, Budget& budget, StepPlan& plan);
  void PlanChunk(State& state, int32_t num_tokens, StepPlan& plan);
  // Also records since when it has been stalled.
  bool SinkCanTake(State& state, int32_t num_deltas, absl::Time now);

  // Blocks and places.
  // Grows its table for tokens up to `end`, with the shift that is due. Preempts others if needed.
  bool MakeRoom(State& state, int64_t end);
  State* PickVictim(const State& served) const;
  State* PickStalled() const;
  void Preempt(State& victim);
  bool TenantHasPlaces(const State& state) const;
  State* PickNext(absl::Time now);
  State* FirstInTurn(absl::Time now);
  void FindTogether(const State& first);
  int64_t NumUncached(State& state);
  bool TryStart(State& state, absl::Time now);
  bool StartBlocks(State& state, int64_t* num_cached);

  // After a step.
  InFlight& OldestInFlight(const StepPlan& plan);
  void EndOldestInFlight();
  void ForgetEnded();
  void ForkSamples(State& first, std::span<const SampledToken> sampled, bool lost,
                   std::vector<FinishedSequence>& finished);
  void TakeToken(State& state, const SampledToken& token, std::vector<FinishedSequence>& finished);

  State& NewState(std::shared_ptr<Sequence> sequence, std::shared_ptr<Group> group, uint64_t order);
  void AddPlaces(const State& state, int32_t num);
  void InsertRunning(State& state);

  const SchedulerConfig config_;
  BlockManager& blocks_;  // not owned
  TenantShares shares_;
  std::unordered_map<SequenceId, std::unique_ptr<State>> states_;  // waiting and running ones
  std::unique_ptr<Waiting> waiting_;
  std::vector<State*> running_;                // oldest first
  std::vector<std::unique_ptr<State>> ended_;  // that a plan in flight still names
  std::vector<FinishedSequence> dropped_;
  std::vector<InFlight> in_flight_;        // oldest first; at most pipeline_depth + 1
  std::vector<InFlight> spare_in_flight_;  // kept for their capacity, as are these
  std::vector<StepPlan> spare_plans_;
  std::vector<State*> scratch_;
  std::vector<State*> together_;  // in the order of their turns; the shortest starts
  uint64_t next_order_ = 0;
  int64_t step_ = 0;                // planned last
  int64_t num_schedules_ = 0;       // calls
  int32_t num_places_ = 0;          // of max_num_seqs, taken by running sequences
  int32_t starts_to_oldest_ = 0;    // until the oldest has its turn
  int32_t num_sampled_ = 0;         // tokens that the step being planned will draw
  bool blocks_waited_for_ = false;  // this step lacked blocks for one that runs
  // The next in turn did not fit in no_start_below_ of room. Before call no_start_until_ of
  // Schedule it is tried again only with more room.
  int64_t no_start_below_ = 0;
  int64_t no_start_until_ = 0;
  SchedulerStats stats_;
};

}  // namespace quire::engine
