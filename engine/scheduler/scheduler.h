#pragma once

// Decides, once per step, which sequences run and how many tokens each gets.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/record_allocator.h"
#include "engine/kv/block_manager.h"
#include "engine/request/follow_end.h"
#include "engine/request/sequence.h"
#include "engine/scheduler/step_plan.h"
#include "engine/scheduler/tenant_shares.h"

namespace quire::engine {

// Which of the sequences younger than the one served makes way when blocks run out: the one that is
// cheapest to compute again (see Scheduler), or the youngest, as vLLM has it.
enum class VictimChoice : uint8_t { kCheapest, kYoungest };

struct SchedulerConfig {
  std::string model;         // a part of every cache root's key
  uint64_t cache_epoch = 0;  // the first part, until ForgetCached
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;  // at least max_num_seqs
  // Returns the most prompt tokens, at least 1, of a step with `num_decodes` decodes. Called for
  // each step that has decodes. If empty, there is no such limit.
  std::function<int32_t(int32_t num_decodes)> prefill_limit;
  // The most logit rows of prompts, continuations and drafts in one step. A plan has at most
  // max_num_seqs other logit rows.
  int32_t max_logit_rows = 0;
  // The most drafted tokens of one sequence in one step. Must be 0 at pipeline depth 1, because the
  // tokens before a draft must be on the host.
  int32_t max_draft_tokens = 0;
  // Returns the part of the time of a step with `rows` decodes and drafts that one of them takes,
  // without what they share, such as reading the weights. If empty, drafts cost nothing.
  std::function<double(int32_t rows)> row_share;
  int32_t pipeline_depth = 0;  // 0 or 1: how far Schedule may run ahead of Complete
  absl::Duration stalled_stream_timeout;
  // When a sequence starts, this many blocks stay available for each running sequence. So the
  // running sequences can continue for a while before one of them is preempted. Measured in a
  // simulation of 1000 requests, at most 64 at a time, on a cache with room for 8 whole sequences:
  // 19 % of all tokens were computed again with 0 blocks, 12 % with 1, and 3 % with 3. The run with
  // 3 blocks took 9 % more steps.
  int32_t headroom_blocks = 2;
  VictimChoice victim = VictimChoice::kCheapest;
  // Every starts_per_oldest-th start goes to the sequence that has waited longest, whatever the
  // priorities and shares.
  int32_t starts_per_oldest = 8;
  // A waiting sequence waits for tokens that a running one computes if these fill at least so many
  // blocks; 0: it never does.
  int32_t least_followed_blocks = 2;
};

// Tells why a sequence left the scheduler. All causes but kFinished have FinishReason::kAbort.
enum class EndCause : uint8_t {
  kFinished,   // a token, a length or a stop string ended it
  kCancelled,  // Request::cancelled, or Cancel()
  kDeadline,   // its request's deadline passed
  kStalled,    // its sink took nothing for stalled_stream_timeout
  kFailed,     // its step failed, or its token could not be drawn
};

struct FinishedSequence {
  // A shared pointer, because plans in flight may still name the sequence. The sequence no longer
  // changes.
  std::shared_ptr<const Sequence> sequence;
  EndCause cause = EndCause::kFinished;
};

// num_waiting, num_running, num_stalled and num_tenants are current values. The others are totals
// since the start. A prompt that was started and computed to its end adds exactly its length to
// prompt_tokens_cached + prompt_tokens_computed. Recomputed tokens are not part of this sum.
struct SchedulerStats {
  int64_t num_waiting = 0;  // sequences that wait now, preempted ones included
  int64_t num_running = 0;
  int64_t num_stalled = 0;
  int64_t num_steps = 0;
  int64_t scheduled_tokens = 0;
  int64_t prompt_tokens_computed = 0;
  int64_t prompt_tokens_cached = 0;
  int64_t recomputed_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t scored_tokens = 0;    // in continuations that were scored to their end
  int64_t drafted_tokens = 0;   // computed to find out whether they are right
  int64_t accepted_tokens = 0;  // correct drafts that did not end their sequence
  // Tokens that the drafts were expected to yield, and that steps without the drafts would have
  // yielded in the time which the drafts took.
  double drafts_expected = 0.0;
  double drafts_price = 0.0;
  int64_t beam_copies = 0;  // blocks copied because beams had shared them
  int64_t num_preemptions = 0;
  int64_t num_overrun = 0;             // tokens planned for a sequence that had already ended
  std::array<int64_t, 3> followers{};  // sequences that waited for others' tokens, by FollowEnd
  int64_t num_tenants = 0;             // tenants that have sequences now
};

// Among prompts that arrive within kTogether of each other the shortest may start first. One prompt
// is passed in this way at most kMostPasses times.
inline constexpr absl::Duration kTogether = absl::Milliseconds(100);
inline constexpr int32_t kMostPasses = 8;

// Returns the key of the cache's root under which a request finds and lists its blocks.
std::string RootKeyOf(std::string_view model, uint64_t cache_epoch, const Request& request);

// Implements continuous batching (Orca, OSDI 2022) with chunked prefill (Sarathi-Serve,
// arXiv:2403.02310). Decodes are planned first, oldest first, so a long prompt cannot stall them.
// The rest of the token budget is for running prefills, then for new starts. When blocks run out, a
// sequence younger than the one served is preempted: its blocks are released, and it is recomputed
// later. The sequence that is cheapest to recompute is chosen. Stalled sequences of any age are
// chosen before others.
//
// A plan has at most max_num_batched_tokens tokens and at most max_num_seqs sequences. Each planned
// sequence holds blocks for all its tokens. The oldest running sequence that is not stalled is
// planned, so no running sequence starves. (Requests that do not fit an empty cache are refused
// before they get here.) At pipeline depth 1 the oldest sequence may wait one step: for a victim's
// blocks that the step in flight may still touch, or for its own token in flight.
//
// A waiting sequence starts when there is a place for it and when blocks for its whole context, one
// more block and the headroom are available. When nothing runs, it may fill the cache. Preempted
// sequences start first, oldest first. The others start in the order of priority (larger first),
// the tenant's share (least served first, VTC, arXiv:2401.00588), deadline (earliest first) and
// arrival. A sequence without a deadline counts as having the latest. Exceptions:
// - Several sequences of one tenant and priority may arrive, and expire, within kTogether of the
//   next in turn. Among these the one with the fewest tokens to compute starts first, if there are
//   places for its samples. No sequence is passed in this way more than kMostPasses times.
// - If a tenant has all the places that its limits allow, sequences of other tenants pass those of
//   this tenant.
// - If a tenant holds as many blocks as its limits allow, its new sequences wait, and others pass
//   them. Its running sequences grow no more, apart from the oldest, until others of its sequences
//   have ended.
// - A sequence whose first tokens a running sequence is computing waits for them (see Flights), and
//   others pass it meanwhile.
// - Every starts_per_oldest-th start is that of the oldest sequence. So with k older sequences
//   waiting a sequence starts after at most starts_per_oldest * (k + 1) others.
// Otherwise the sequence that is next in turn is never passed. If it does not fit, all wait.
//
// The prefix cache is searched when a sequence starts, not when it is added, so that the search
// finds blocks that earlier sequences computed meanwhile. A request with n samples is one sequence
// with n places until its prompt is computed. Complete() then forks the other n - 1 sequences. From
// then on each sequence is scheduled, preempted and ended on its own.
//
// The table of a request with a cache window is shifted in the step whose first token would
// otherwise have no place. A chunk ends before such a token. So a token sees the same cache
// whatever the sizes of chunks, and also when the token is recomputed.
//
// The samples of a scoring request are its continuations. At the fork each sequence is given all
// tokens of its continuation but the last. The tokens are computed like a prompt, with logits for
// every row. The sequence takes all its blocks at once, with its first token after the fork.
//
// The beams of a beam search (SamplingParams::beam) are planned, preempted and ended together. They
// are forked when the prompt is computed, and draw nothing: each row yields a token and the beam
// that it follows (SampledToken::parent). Complete() then moves the blocks by
// BlockManager::Reorder. Nothing that beams generate is listed for others. At pipeline depth 1 the
// beams wait for their tokens, and are not preempted while they are in flight.
//
// With max_draft_tokens, a decode may have drafted tokens (PromptLookup). Each row of the decode
// draws a token, so the step shows how many drafts were right. A draft takes only what is left
// over: it preempts nothing, leaves a block for each running sequence, and is not made while there
// are prompts to compute. A token is drafted only if the tokens that it is expected to yield exceed
// those that its time would yield otherwise. The expectation is learned for each sequence, also
// from guesses that were too dear to draft. The tokens of a sequence are those that it would have
// without drafts.
//
// A request with Request::pins computes its prompt and draws nothing. The token of its last row is
// only a verdict: whether K and V are sound. If they are, Complete() commits the prompt, pins it
// and ends the sequence, in this order, so that no block is evictable in between.
//
// Uses no tensors and no device; the time is an argument. Not thread-safe; lives on the step
// thread.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, BlockManager& blocks);  // `blocks` must outlive this
  ~Scheduler();                                                    // releases all its blocks

  // Adds the first sequence of a request, with the prompt's tokens. The other n - 1 sequences are
  // forked from it later, with ids id + 1 .. id + n - 1.
  void Add(Sequence sequence);
  // Adds the samples of a resumed request that have not ended, at least one, each with the prompt's
  // tokens and the tokens that it had. They are scheduled like forked sequences that were preempted
  // just now, but wait in the turns of new ones, so nobody gains a place by resuming.
  void AddResumed(std::vector<Sequence> samples);

  // Returns the plan of a step, which is empty when nothing can run now. First ends the running
  // sequences that were cancelled (see Reconsider), and all sequences that are past their deadline
  // or have stalled too long. TakeDropped() returns the ended sequences. Plans that are not empty
  // must be completed (or failed), in order. Up to pipeline_depth plans may be outstanding when the
  // next is made.
  StepPlan Schedule(absl::Time now);

  // Completes a step and returns the sequences that finished. `sampled` holds the num_draws()
  // tokens of each plan entry, in order. A token with a finish reason ends its sequence and is kept
  // in the sequence. With kAbort the token is dropped. If SampledToken::is_void is set, the tokens
  // that the sequence computed in this step are not listed for others either. A sequence of the
  // plan may have ended meanwhile (its finish_reason is set). Its tokens are then dropped, and the
  // caller must not show them.
  std::vector<FinishedSequence> Complete(const StepPlan& plan, const SampledTokens& sampled);
  // Replaces Complete when the step could not run. Ends every sequence in the step (kFailed).
  std::vector<FinishedSequence> Fail(const StepPlan& plan);

  // Ends a sequence (kCancelled) and releases its blocks. Returns NotFound if the sequence has
  // finished.
  absl::Status Cancel(SequenceId id);
  // Sequences added from now on find no cached block of earlier sequences. The blocks of earlier
  // sequences stay in the cache until they are evicted or freed.
  void ForgetCached() { ++cache_epoch_; }
  uint64_t cache_epoch() const { return cache_epoch_; }
  // Ends the pin of a named prefix. Sequences that run on it keep its blocks.
  void Unpin(PinId pin);

  // Returns the number of prompt tokens that the cache lacks now.
  int64_t NumUncached(const Request& request);
  // Returns the number of prompt tokens that running sequences have to compute. A sequence starts
  // with what they leave of a step, whatever its priority.
  int64_t NumPromptTokensLeft() const;
  // To be called when the request of the sequence was cancelled, or when its sink has room again.
  // If the request was cancelled, ends a waiting sequence; the next step ends a running one. If the
  // sink has room, lets a stalled waiting sequence take its turn again. Without this call, the
  // scheduler would notice either event only at the sequence's deadline, or when it has been
  // stalled for stalled_stream_timeout.
  void Reconsider(SequenceId id, absl::Time now);
  // Returns the sequences that Schedule(), Cancel() and Reconsider() ended since the last call.
  std::vector<FinishedSequence> TakeDropped();

  // Lets the next plan reuse a completed plan's memory. Optional.
  void Recycle(StepPlan plan);

  bool HasWork() const { return !states_.empty() || !in_flight_.empty(); }
  // Returns the earliest time at which a deadline passes or a sequence has been stalled for
  // stalled_stream_timeout. A step thread with nothing to run may sleep until this time. Events (a
  // request, a cancellation, a sink with room again) must wake the thread earlier.
  absl::Time NextWakeup() const;

  SchedulerStats stats() const;
  // Aborts if the scheduler's records or the blocks are inconsistent.
  void CheckInvariants() const;

 private:
  struct Group;     // shared by the samples of one request
  struct State;     // one sequence
  struct InFlight;  // one step
  struct Bar;       // what bars the starts of one tenant
  struct TenantBudget;
  class Waiting;  // sequences that do not run
  class Flights;  // which of them wait for tokens that others compute

  // Ending sequences.
  void DropEnded(absl::Time now);
  EndCause CauseOf(State& state, absl::Time now);  // kFinished: the sequence goes on
  FinishedSequence End(State& state, FinishReason reason, EndCause cause);
  // Notes that the tokens [before, after) that the sequence has computed are to be committed later.
  // Returns false, and notes nothing, if they are to be committed now.
  bool TryCommitLater(State& state, int64_t before, int64_t after);
  // Commits what a sequence of the state has computed.
  void Commit(State& state, const Sequence& sequence);
  // Commits the blocks that are full since this step.
  void CommitFull();
  // Commits what the sequence has computed and not committed.
  void CommitRest(State& state);
  // Pins what the sequence has committed, if its request is a turn of a pinned session.
  void PinSession(const State& state);

  // Planning a step.
  struct Budget;
  struct Drafting;
  bool IsToOpen(const State& state) const;  // true: a forked continuation without its blocks
  void OrderDecodes();
  void PlanDecodes(absl::Time now, Budget& budget, StepPlan& plan);
  void PlanPrefills(absl::Time now, Budget& budget, StepPlan& plan);
  void StartWaiting(absl::Time now, Budget& budget, StepPlan& plan);
  int32_t ChunkLimit(const State& state, const Budget& budget) const;
  bool TryPlanPrefill(State& state, absl::Time now, Budget& budget, StepPlan& plan);
  // Divides what is left of a step between the tenants whose prompts run or may start.
  void DivideBudget(const Budget& budget);
  void Divide(int32_t Budget::*what, int32_t left);
  TenantBudget& BudgetOf(TenantShares::TenantId tenant, int32_t priority);
  Drafting BeginDrafting(const Budget& budget) const;
  // Returns the tokens that the step would yield without one more row, in the time of that row.
  double PriceOf(const Drafting& drafting) const;
  // Drafts tokens for a decode that has its blocks, takes blocks for them and appends them to
  // plan.drafts. Returns their number.
  int32_t Draft(State& state, Drafting& drafting, StepPlan& plan);
  // Plans the next `num_tokens` tokens of the sequence, and the last `num_drafts` of plan.drafts.
  void PlanChunk(State& state, int32_t num_tokens, int32_t num_drafts, StepPlan& plan);
  // Charges a tenant for what is planned. FlushCharge() must follow before charges are read.
  void Charge(TenantShares::TenantId tenant, int64_t cost);
  void FlushCharge();
  // Returns true if the sequence's sink has room for `num_deltas` more.
  static bool SinkHasRoom(const State& state, int32_t num_deltas);
  // Plans the next tokens of all beams, at most `most_tokens` in all, or none.
  void PlanBeams(State& state, int32_t most_tokens, Budget& budget, StepPlan& plan);
  // Returns SinkHasRoom(), and updates the sequence's stalled_since.
  bool SinkCanTake(State& state, int32_t num_deltas, absl::Time now);
  void NoteStalled(State& state, absl::Time now);

  // Blocks and places.
  //
  // Grows the sequence's table for tokens up to `end` and applies the shift that is due. Preempts
  // other sequences if needed. Returns false if the table could not grow.
  bool MakeRoom(State& state, int64_t end);
  // True if MakeRoom has nothing to do.
  bool HasRoom(const State& state, int64_t end) const;
  bool MakeRoomForBeams(State& state, int64_t end);
  State* PickVictim(const State& served) const;
  State* PickStalled() const;
  // Returns the oldest running sequence that is not stalled; null if there is none.
  const State* Oldest() const;
  BlockManager::Exclusive ExclusiveOf(const State& state) const;
  // Returns what a tenant holds as a multiple of its part: above 1, it is beyond its part.
  double BlockLevel(const Group& group) const;
  double PlaceLevel(const Group& group) const;
  // True if the tenant holds no more than its part once the sequence has started.
  bool FitsPart(const State& state) const;
  // The running sequence lacks blocks, so its tenant starts none in this step.
  void NoteLack(const State& state);
  // Starts claimant_, if it may start and what it lacks can be taken from tenants beyond their
  // parts. Returns it if it has started, else null.
  State* StartClaimant(absl::Time now);
  // Fills victims_ with the sequences to preempt so that `state` gets what it lacks: places, or
  // blocks. Returns false if they would not do.
  bool PickVictimsOf(const State& state, bool of_places, int64_t lacking);
  void Preempt(State& victim);
  bool TenantHasPlaces(const State& state) const;
  bool IsOverQuota(const State& state) const;
  // Returns true if a running sequence must wait before it grows to `end` tokens, since its tenant
  // holds as many blocks as it may. The oldest of the tenant's sequences that are not stalled never
  // waits.
  bool WaitsForQuota(const State& state, int64_t end) const;
  bool IsAtQuota(const State& state, int64_t end) const;  // the same, of a tenant with a quota
  State* PickNext(absl::Time now);
  State* FirstInTurn(absl::Time now);
  State* ShortestTogether(State& first, absl::Time now);
  void FindTogether(const State& first);
  int64_t NumUncached(State& state);
  bool IsBarred(const State& state) const;
  bool IsTurnOfOldest() const { return starts_to_oldest_ <= 1 && !oldest_passed_; }
  // `claims`: it may take blocks and places of tenants beyond their parts.
  bool TryStart(State& state, absl::Time now, bool claims = false);
  int64_t NumBlocksOf(const State& state) const;  // those that it has when it has started
  // If it returns false, sets `lacking` to the number of blocks that are missing.
  bool StartBlocks(State& state, bool claims, BlockManager::StartResult* start, int64_t* lacking);
  void MakeBeams(State& state);
  void ForkBeams(State& state);
  void ReleaseBeams(State& state, const CacheUseEnd& end);
  static int64_t NumJointTokens(const State& state);
  // Returns the blocks that beams need, after the tokens that they have in common, to come back.
  int64_t BlocksToRejoin(const State& state) const;

  // After a step.
  InFlight& OldestInFlight(const StepPlan& plan);
  void EndOldestInFlight();
  void ForgetEnded();
  void LearnGuess(State& state, bool was_right);
  // Appends the accepted drafts of an entry to its sequence, and forgets the others. `tokens` are
  // the tokens that the entry drew. Returns the number of drafts that were refused.
  int32_t TakeDrafts(State& state, const StepPlanEntry& entry,
                     std::span<const SampledToken> tokens);
  void ForkSamples(State& first, std::span<const SampledToken> sampled, bool lost,
                   std::vector<FinishedSequence>& finished);
  void TakeToken(State& state, const SampledToken& token, std::vector<FinishedSequence>& finished);
  // Takes the tokens of one entry of a beam search. With the last entry's, the beams go on.
  void TakeBeams(State& state, std::span<const SampledToken> tokens, bool lost,
                 std::vector<FinishedSequence>& finished);

  std::shared_ptr<Group> NewGroup(const std::shared_ptr<Request>& request);
  State& NewState(Sequence sequence, std::shared_ptr<Group> group, uint64_t order);
  void AddPlaces(const State& state, int32_t num);
  void InsertRunning(State& state);
  template <typename StateOf>
  void PrefetchAhead(size_t i, size_t n, bool completes, StateOf state_of) const;

  const SchedulerConfig config_;
  BlockManager& blocks_;    // not owned
  const bool has_windows_;  // some layers see a part of the context
  const int64_t num_blocks_;
  TenantShares shares_;
  const base::RecordAllocator<Sequence> records_;  // of sequences, states and groups
  std::unordered_map<SequenceId, std::shared_ptr<State>> states_;  // waiting and running ones
  std::unique_ptr<Waiting> waiting_;
  std::unique_ptr<Flights> flights_;
  std::vector<State*> running_;                // oldest first
  std::vector<std::shared_ptr<State>> ended_;  // kept while plans in flight name them
  std::vector<FinishedSequence> dropped_;
  std::vector<InFlight> in_flight_;        // oldest first; at most pipeline_depth + 1
  std::vector<InFlight> spare_in_flight_;  // kept for their capacity, like the next two
  std::vector<StepPlan> spare_plans_;
  std::vector<State*> scratch_;
  std::vector<State*> full_;                      // those with a block that is full since this step
  std::vector<BlockManager::Computed> computed_;  // scratch of CommitFull
  std::vector<State*> together_;  // candidates in the order of their turns; the shortest starts
  std::vector<State*> passed_;    // those that others of this step may pass, and which are counted
  std::vector<State*> victims_;
  std::vector<State*> beyond_;         // scratch of OrderDecodes
  std::vector<State*> heads_;          // scratch of DivideBudget, like the next one
  std::vector<TenantBudget> budgets_;  // by tenant, while prompts are planned
  std::vector<Bar> bars_;              // by tenant
  // A new sequence of a tenant below its part that lacked blocks or places in the step before.
  State* claimant_ = nullptr;
  State* claimed_ = nullptr;  // the claimant that has started in this step
  uint64_t next_order_ = 0;
  uint64_t cache_epoch_;  // part of every root key
  TenantShares::TenantId charged_ = -1;
  int64_t charge_ = 0;                // of charged_, not flushed yet
  int64_t step_ = 0;                  // the step planned last
  int64_t num_schedules_ = 0;         // number of calls of Schedule
  int32_t num_places_ = 0;            // places of max_num_seqs that running sequences take
  int32_t starts_to_oldest_ = 0;      // starts until the oldest sequence has its turn
  int32_t num_sampled_ = 0;           // tokens that the step being planned will draw
  bool lacks_blocks_ = false;         // the step lacked blocks for a running sequence
  bool oldest_lacks_blocks_ = false;  // it was the oldest
  bool oldest_passed_ = false;  // the turn of the oldest sequence had come, but it did not start
  // Whether, when the step began, a running sequence had tokens to compute other than a decode; by
  // whether its sink was full. DropEnded sets them, so that no other loop over all sequences does.
  bool any_prefill_ = false;
  bool any_stalled_prefill_ = false;
  bool any_to_open_ = false;   // a continuation has yet to take its blocks
  int64_t num_openings_ = 0;   // events after which a start that failed may be tried again
  int64_t idle_openings_ = 0;  // num_openings_ when the last step had room but nothing started
  double guess_chance_ = 0.0;  // of the first guess of a new sequence: guesses begin without credit
  SchedulerStats stats_;
};

}  // namespace quire::engine
