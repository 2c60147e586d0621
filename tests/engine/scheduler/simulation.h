#pragma once

// Runs the scheduler and the block manager on a cache of hashes instead of tensors. The slot of a
// token holds the hash of all tokens up to this one. Each shift of the slot changes the hash once
// more. A read compares the slots with the hashes of the sequence, so it detects a wrong table,
// copy, shift or hit, and a block that was reused too early.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "engine/kv/block_manager.h"
#include "engine/scheduler/scheduler.h"
#include "kernels/ops/attention_pattern.h"

namespace quire::engine {

// Returns n tokens: first, first + 1 and so on.
std::vector<int32_t> Prompt(int32_t n, int32_t first);

class FakeSink final : public TokenSink {
 public:
  bool CanTake(int32_t num_deltas) const override { return num_deltas <= room; }
  void Put(TokenDelta) override {}
  void Finish(const absl::Status&, const RequestSummary&) override {}

  int32_t room = 1 << 20;
};

struct RequestSpec {
  std::vector<int32_t> prompt;
  int32_t max_tokens = 8;
  int32_t n = 1;
  int32_t beam_width = 0;  // 0: tokens are drawn; otherwise n is 1
  uint64_t seed = 0;
  int32_t stop_one_in = 0;  // one token in this many ends its sequence; 0: none does
  int32_t priority = 0;
  std::string tenant;
  TenantLimits limits;
  std::string salt;
  bool bypass_read = false;
  bool bypass_write = false;
  bool prompt_logprobs = false;
  int32_t sink_tokens = 0;
  int32_t window_tokens = 0;  // 0: no window
  std::vector<std::vector<int32_t>>
      continuations;  // empty, or n continuations; the longest has max_tokens tokens
  absl::Time deadline = absl::InfiniteFuture();
  PinId pins = kNoPin;  // its prompt becomes the prefix of this pin; max_tokens is then 1
  PinId on = kNoPin;    // the pin of the prefix with which its prompt begins
  std::string owner;    // the tenant whose prefix it reads; empty: its own
};

struct SimulationConfig {
  int32_t num_blocks = 64;
  int32_t block_size = 4;
  std::vector<kernels::AttentionPattern> patterns;  // of the KV groups after group 0
  int32_t full_windows = 1;         // the sequences for which each window always has room
  int32_t spare_window_blocks = 0;  // blocks of each window, beyond their need
  SchedulerConfig scheduler;        // the simulation replaces zeros by defaults
};

class Simulation {
 public:
  explicit Simulation(const SimulationConfig& config);

  // Adds a request. Returns the id of its first sequence.
  SequenceId Add(const RequestSpec& spec);
  // Schedules a step. Then completes the oldest step in flight, if more than pipeline_depth steps
  // are in flight or if nothing was planned. Returns whether anything was planned or completed.
  // Checks the plan, and checks the scheduler's invariants after planning and after completing.
  bool Step();
  // Runs steps until nothing is left to do.
  void Run(int max_steps = 100000);

  struct Ended {
    Sequence sequence;
    EndCause cause = EndCause::kFinished;
  };
  const std::map<SequenceId, Ended>& ended() const { return ended_; }
  // Returns the tokens of sample k of a request that runs alone and without a cache. The last token
  // of a beam is not one of them.
  static std::vector<int32_t> Alone(const RequestSpec& spec, int32_t k);

  // Cancels a request, as the step thread does.
  void Cancel(SequenceId first);
  FakeSink& sink(SequenceId first) { return *sinks_.at(first); }
  Scheduler& scheduler() { return scheduler_; }
  BlockManager& blocks() { return blocks_; }
  // The latest plan, and the sequences of its entries in the same order. Some of these sequences
  // may have ended since the plan was made.
  const StepPlan& last_plan() const { return last_plan_; }
  const std::vector<SequenceId>& planned() const { return planned_; }
  bool Planned(SequenceId id) const;
  StepPlanEntry Entry(SequenceId id) const;

  absl::Time now = absl::UnixEpoch();
  // The number of computed tokens. A token that is computed twice counts twice.
  int64_t num_token_rows = 0;
  int64_t max_prompt_rows = 0;
  int64_t num_shifted_blocks = 0;
  // When true, the step that is executed next fails.
  bool fail_next = false;

 private:
  // A beam search that runs alone: by step, what each beam draws, and the tokens that each beam has
  // generated before.
  struct Search {
    std::vector<std::vector<SampledToken>> draws;
    std::vector<std::vector<std::vector<int32_t>>> generated;
  };
  static Search SearchAlone(const RequestSpec& spec);

  struct Row {
    SequenceId id = 0;
    RequestSpec const* spec = nullptr;
    int32_t sample_index = 0;
    int64_t num_known = 0;  // tokens on the host when the row was planned
    std::vector<int32_t> tokens;
    std::vector<std::vector<int32_t>> tables;  // by KV group; -1: no block
  };
  struct Submitted {
    StepPlan plan;
    std::vector<Row> rows;
    std::vector<std::vector<kernels::BlockCopy>> copies;  // by KV group
  };
  void CheckPlan(const StepPlan& plan);
  // Checks what must hold when nothing is left to do.
  void CheckIdleIsEmpty() const;
  void CheckSinks(const StepPlan& plan) const;
  void CheckCopies(const std::vector<kernels::BlockCopy>& copies) const;
  Submitted Submit(StepPlan plan) const;
  // Returns the first position that a query at `position` reads in a KV group.
  int64_t FirstRead(size_t group, int64_t position) const;
  SampledTokens Execute(const Submitted& step);
  // Counts the tokens that a scoring entry scores for its k-th sample. Returns the token that the
  // entry yields for that sample.
  SampledToken Score(const StepPlanEntry& entry, const Row& row, int32_t k);
  // Draws the tokens of an entry with drafts, until one differs from its draft or ends the sample.
  // contexts[i] hashes all tokens up to the entry's i-th.
  static void Verify(const StepPlan& plan, const StepPlanEntry& entry, const Row& row,
                     const std::vector<uint64_t>& contexts, SampledTokens& sampled);
  // Checks that a beam has the tokens that it has alone. Appends what it draws to `sampled`.
  void DrawBeam(const StepPlanEntry& entry, const Row& row, SampledTokens& sampled) const;
  void Note(std::vector<FinishedSequence> finished);
  const RequestSpec& SpecOf(const Sequence& sequence) const;
  CacheWindow WindowOf(const RequestSpec& spec) const;

  const SimulationConfig config_;
  BlockManager blocks_;
  Scheduler scheduler_;
  std::vector<std::vector<uint64_t>> kv_;    // by KV group: [num_blocks, block_size]
  std::map<SequenceId, RequestSpec> specs_;  // by the id of the first sequence
  std::map<SequenceId, std::shared_ptr<Request>> requests_;
  std::map<SequenceId, std::shared_ptr<FakeSink>> sinks_;
  std::map<SequenceId, Ended> ended_;
  std::map<SequenceId, Search> searches_;  // by the id of the first beam
  // For each continuation, the number of tokens that have been scored.
  std::map<SequenceId, int64_t> num_scored_;
  std::deque<Submitted> submitted_;
  SampledTokens previous_;  // the tokens of the step that ran last
  StepPlan last_plan_;
  std::vector<SequenceId> planned_;
  SequenceId next_id_ = 1;
  int64_t drafted_ = 0;  // SchedulerStats after the last plan
  double drafts_expected_ = 0.0;
  double drafts_price_ = 0.0;
};

}  // namespace quire::engine
