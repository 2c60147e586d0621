#pragma once

// One server on a virtual clock: the real scheduler, block manager and pacer, and a cost model in
// the place of a device.

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"

#include "engine/kv/block_manager.h"
#include "engine/scheduler/prefill_pacer.h"
#include "engine/scheduler/scheduler.h"
#include "tools/sim/cost_model.h"
#include "tools/sim/trace.h"

namespace quire::tools {

struct ReplicaConfig {
  int64_t cache_tokens = 65536;
  int32_t block_size = 16;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_logit_rows = 64;   // of prompts and continuations in a step, as in quire-server
  absl::Duration max_step_time;  // 0: steps are not paced
  engine::EvictionPolicy eviction = engine::EvictionPolicy::kReuse;
  engine::VictimChoice victim = engine::VictimChoice::kCheapest;
  int32_t headroom_blocks = engine::SchedulerConfig().headroom_blocks;
  CostModel cost;
};

// The outcome of one request. Times are in seconds since the start.
struct Served {
  double arrival = 0.0;
  double first_token = 0.0;
  double last_token = 0.0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int32_t tenant = 0;
  // Steps that ended after its arrival, up to the one that yielded the first token.
  int64_t ttft_steps = 0;
  // The longest time between two tokens of an answer. 1 step: each step yields one.
  double longest_gap = 0.0;
  int64_t longest_gap_steps = 0;
};

class Replica {
 public:
  // `served` is called for each request when it ends.
  Replica(const ReplicaConfig& config, std::function<void(const Served&)> served);

  // True if the request fits an empty cache.
  bool Fits(const TraceRequest& request) const;
  // Adds a request that fits, at the time `now`, which no earlier call may exceed.
  void Add(const TraceRequest& request, int32_t block_tokens, double now);
  // The time at which the step in flight ends; infinity when none is.
  double step_end() const { return step_end_; }
  // Ends the step in flight, and begins the next one.
  void EndStep();

  int64_t num_requests() const { return std::ssize(live_); }    // that wait or run
  int64_t num_tokens_left() const { return num_tokens_left_; }  // of these requests, at first
  engine::SchedulerStats stats() const { return scheduler_.stats(); }
  engine::BlockStats block_stats() const { return blocks_.stats(); }
  double longest_step() const { return longest_step_; }  // virtual time
  double busy_seconds() const { return busy_seconds_; }  // virtual time of steps
  // The real time that scheduler and cache took, all steps together.
  double scheduler_seconds() const { return absl::ToDoubleSeconds(scheduler_time_); }

 private:
  struct Live {
    Served served;
    int64_t num_tokens = 0;
    int32_t num_left = 1;  // samples that have not ended
    int64_t step = 0;      // that ended last when it arrived or, after the first token, yielded one
  };
  class Sink;
  void BeginStep(double now);
  // Takes a token of a request, and ends the request with the last one.
  void TakeToken(engine::SequenceId first, bool ends, double now);

  const ReplicaConfig config_;
  const std::function<void(const Served&)> served_;
  engine::PrefillPacer pacer_;
  engine::BlockManager blocks_;
  engine::Scheduler scheduler_;
  const std::shared_ptr<engine::TokenSink> sink_;
  std::unordered_map<engine::SequenceId, Live> live_;
  engine::SequenceId next_id_ = 1;
  engine::StepPlan plan_;
  engine::SampledTokens sampled_;
  double step_begin_ = 0.0;
  double step_end_;
  double busy_seconds_ = 0.0;
  double longest_step_ = 0.0;
  int64_t num_ended_steps_ = 0;
  int64_t num_tokens_left_ = 0;
  absl::Duration scheduler_time_;
};

}  // namespace quire::tools
