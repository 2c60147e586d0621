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
  // Most prompt tokens beside so many decodes, at least 1; asked at each step that has any. Empty:
  // no limit of its own.
  std::function<int32_t(int32_t num_decodes)> prefill_limit;
  // Rows of prompts and continuations whose logits a step may ask for in all. A plan has at most
  // max_num_seqs of other logit rows beside them.
  int32_t max_logit_rows = 64;
  int32_t pipeline_depth = 0;  // 0 or 1: how far Schedule may run ahead of Complete
  absl::Duration stalled_stream_timeout = absl::Seconds(30);
  // For each one that runs, a start leaves so many blocks to be had, so that they can go on a while
  // before somebody is preempted. Of all tokens of 1000 requests, 64 at once on a cache for 8, 19 %
  // were recomputed with 0, 12 % with 1, 3 % with 3 (and 9 % more steps); simulated.
  int32_t headroom_blocks = 2;
  // One start in so many goes to whoever has waited longest, whatever priorities and shares say.
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

// Since the start. Of every sequence's prompt, once started and computed to its end, exactly
// prompt_tokens_cached + prompt_tokens_computed; what is computed again counts in neither.
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

// Prompts that came so close together that the shortest of them may go first, and how often one of
// them is passed by such.
inline constexpr absl::Duration kTogether = absl::Milliseconds(100);
inline constexpr int32_t kMostPasses = 8;

// Continuous batching (Orca, OSDI 2022) with chunked prefill (Sarathi-Serve, arXiv:2403.02310):
// decodes are placed first, oldest first, so a long prompt cannot stall them; the rest of the token
// budget goes to prefills that run, then to new starts. When blocks run out, the sequence that is
// cheapest to bring back, among those younger than the one served, gives its blocks back and is
// recomputed later (a stalled one of any age goes before them).
//
// After Schedule(): planned tokens <= max_num_batched_tokens, planned sequences <= max_num_seqs,
// each planned sequence holds blocks for all its tokens, and the oldest running one that is not
// stalled is planned, so nothing that runs starves (admission has refused any request that could
// not fit in an empty cache). At pipeline depth 1 it may wait one step for blocks that a victim
// gave back, which the step in flight may still touch, or for the token that ends it.
//
// Who starts, when a place and blocks for its whole context, one more and the headroom can be had
// (alone it may fill the cache): first the preempted, oldest first; then by priority (larger
// first), the tenant's share (fewest tokens served, VTC, arXiv:2401.00588), deadline (earliest
// first; none is last) and arrival. Of one tenant's of one priority that came, and expire, within
// kTogether of the one in turn, the one with places for its samples and the fewest tokens to compute
// goes first; it passes those in turn before it, each of which is passed so at most kMostPasses
// times. One whose tenant has all the places that its limits allow lets those of other tenants pass.
// Nothing else passes one that does not fit: it is waited for. Every starts_per_oldest'th start goes
// to the oldest, so with k older ones waiting a sequence starts after at most
// starts_per_oldest * (k + 1) others.
//
// What the prefix cache holds is looked up when a sequence is first planned, not when it is added,
// so that it finds what those before it computed meanwhile. A request with n samples is one
// sequence, and has n places, until its prompt is computed; Complete() then forks the others, which
// are scheduled, preempted and ended each by itself.
//
// A request with a cache window has its table shifted in the step whose first token has no place
// in it otherwise; no chunk goes past such a token. So its chunks, whatever their sizes, and those
// of its recomputation, see the same cache.
//
// A scoring request's samples are its continuations: at the fork each takes all its tokens but the
// last, and is computed like a prompt, every row with logits, in blocks that it takes at once with
// the first of them.
//
// Knows no tensor, no device; time is an argument. Not thread-safe; lives on the step thread.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, BlockManager& blocks);  // `blocks` must outlive this
  ~Scheduler();                                                    // releases what it still holds

  // The first sequence of a request, its tokens the prompt's; the others of n follow by
  // themselves, with ids id + 1 .. id + n - 1.
  void Add(std::unique_ptr<Sequence> sequence);

  // Empty when nothing can run now. First ends what runs and was cancelled, and what is past its
  // deadline or has stalled too long: TakeDropped() has it. A plan that is not empty must be
  // completed (or failed), in order; pipeline_depth of them may be outstanding when the next is
  // made.
  StepPlan Schedule(absl::Time now);

  // Returns what finished. `sampled` holds the num_samples tokens of each plan entry, in order.
  // A token with a finish reason ends its sequence and is kept in it; with kAbort it is dropped,
  // and what this step computed is not listed for others.
  // Entries of a sequence that ended meanwhile (its finish_reason is set) are overrun: their tokens
  // are dropped, and their caller must not show them.
  std::vector<FinishedSequence> Complete(const StepPlan& plan, const SampledTokens& sampled);
  // Instead of Complete, when the step could not run: ends every sequence in it (kFailed).
  std::vector<FinishedSequence> Fail(const StepPlan& plan);

  // Frees its blocks and ends it (kCancelled); NotFound once it has finished.
  absl::Status Cancel(SequenceId id);
  // Somebody has cancelled its request, or its sink has room again: ends it or gives it a turn.
  // One that waits is looked at here alone, or when its time is over; one that runs, at each step.
  void Reconsider(SequenceId id, absl::Time now);
  // What Schedule(), Cancel() and Reconsider() ended since the last call.
  std::vector<FinishedSequence> TakeDropped();

  // Gives a completed plan's memory back, for the next one. Not required.
  void Recycle(StepPlan plan);

  bool HasWork() const { return !states_.empty() || !in_flight_.empty(); }
  // When, without any event, the next Schedule() could do more than the last: the earliest deadline
  // or end of a stall. For a step thread with nothing to run; it is woken by what else happens
  // (a request, a cancellation, a sink with room again).
  absl::Time NextWakeup() const;

  SchedulerStats stats() const;
  // Also the blocks'. Aborts on a difference.
  void CheckInvariants() const;

 private:
  struct Group;     // what the samples of one request share
  struct State;     // one sequence
  struct InFlight;  // one step
  class Waiting;    // those that do not run

  // Ending what is over.
  void DropEnded(absl::Time now);
  EndCause CauseOf(State& state, absl::Time now);  // kFinished: none
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
  // Also keeps when it began to be stalled.
  bool SinkCanTake(State& state, int32_t num_deltas, absl::Time now);

  // Blocks and places.
  // For its tokens up to `end`, after the shift that is due. Preempts others where it must.
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
  std::vector<State*> together_;  // in turn: those of whom the shortest starts
  uint64_t next_order_ = 0;
  int64_t step_ = 0;                // planned last
  int64_t num_schedules_ = 0;       // calls
  int32_t num_places_ = 0;          // that the running ones take of max_num_seqs
  int32_t starts_to_oldest_ = 0;    // until the oldest has its turn
  int32_t num_sampled_ = 0;         // tokens that the step being planned will draw
  bool blocks_waited_for_ = false;  // this step lacked blocks for one that runs
  // The next in turn did not fit in so much room; until when that is not tried again.
  int64_t no_start_below_ = 0;
  int64_t no_start_until_ = 0;
  SchedulerStats stats_;
};

}  // namespace quire::engine
