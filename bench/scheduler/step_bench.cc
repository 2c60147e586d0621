// Times steps of the scheduler: Schedule and Complete, with a full cache of 2^20 blocks, so that
// every new block is one that is evicted.

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bench/scheduler/bench.h"
#include "engine/scheduler/scheduler.h"

namespace quire::engine {
namespace {

constexpr int64_t kNumBlocks = 1 << 20;
constexpr int32_t kNeverEnds = 1 << 14;  // tokens; more than the steps of a benchmark

class DeafSink final : public TokenSink {
 public:
  bool CanTake(int32_t) const override { return true; }
  void Put(TokenDelta) override {}
  void Finish(const absl::Status&, const RequestSummary&) override {}
};

class World {
 public:
  explicit World(int32_t num_running, int32_t depth, bool is_full)
      : depth_(depth),
        scheduler_({.model = "bench",
                    .max_num_seqs = std::max(num_running, kFilling) + 1,
                    .max_num_batched_tokens = 1 << 20,
                    .max_logit_rows = 1 << 20,
                    .pipeline_depth = depth,
                    .stalled_stream_timeout = absl::Seconds(30)},
                   blocks_) {
    if (is_full) Fill();
    // The lengths differ, so that as many sequences need a new block in each step.
    for (int32_t i = 0; i < num_running; ++i) Add(NewTokens(512 + i), kNeverEnds);
    for (int i = 0; i < 64; ++i) Step();
    QUIRE_CHECK(scheduler_.stats().num_running == num_running);
  }

  SequenceId Add(std::vector<int32_t> prompt, int32_t max_tokens) {
    auto request = std::make_shared<Request>();
    request->prompt_ids = std::move(prompt);
    request->max_tokens = max_tokens;
    request->sink = sink_;
    Sequence sequence;
    sequence.id = next_id_++;
    sequence.tokens = request->prompt_ids;
    sequence.request = std::move(request);
    scheduler_.Add(std::move(sequence));
    return next_id_ - 1;
  }

  // Runs one step and returns the seconds of CPU time that the scheduler took.
  double Step() {
    double begin = CpuSeconds();
    StepPlan plan = scheduler_.Schedule(absl::UnixEpoch() + absl::Milliseconds(20 * ++step_));
    double seconds = CpuSeconds() - begin;
    const bool is_empty = plan.empty();
    if (!is_empty) in_flight_.push_back(std::move(plan));
    if (in_flight_.empty() || (!is_empty && std::ssize(in_flight_) <= depth_)) return seconds;
    plan = std::move(in_flight_.front());
    in_flight_.erase(in_flight_.begin());
    sampled_.tokens.clear();
    for (const StepPlanEntry& entry : plan.entries) {
      if (entry.num_samples == 0) continue;
      const bool ends = entry.sequence->num_generated() + 1 == entry.sequence->request->max_tokens;
      sampled_.tokens.push_back(
          {.id = static_cast<int32_t>((step_ * 7919 + entry.sequence->id * 31) & 0xffff),
           .finish_reason = ends ? FinishReason::kLength : FinishReason::kNone});
    }
    begin = CpuSeconds();
    scheduler_.Complete(plan, sampled_);
    seconds += CpuSeconds() - begin;
    scheduler_.Recycle(std::move(plan));
    return seconds;
  }

  BlockStats block_stats() const { return blocks_.stats(); }
  SchedulerStats stats() const { return scheduler_.stats(); }

 private:
  static constexpr int32_t kFilling = 256;

  // Fills the cache with blocks that nobody holds, as in a server that has run for a while:
  // sequences grew in turns, so the blocks of one are scattered over the memory.
  void Fill() {
    while (block_stats().num_evictions == 0) {
      for (int32_t i = 0; i < kFilling; ++i) Add(NewTokens(32), 4000);
      while (scheduler_.HasWork()) Step();
    }
  }

  const int32_t depth_;
  int64_t step_ = 0;
  BlockManager blocks_{{.num_blocks = kNumBlocks, .block_size = kBlockSize}};
  Scheduler scheduler_;
  const std::shared_ptr<TokenSink> sink_ = std::make_shared<DeafSink>();
  std::vector<StepPlan> in_flight_;
  SampledTokens sampled_;
  SequenceId next_id_ = 1;
};

// Returns a world that lives on, because its making takes seconds.
World& WorldOf(int32_t num_running, int32_t depth, bool is_full) {
  static auto* const worlds = new std::map<std::tuple<int32_t, int32_t, bool>, World>();
  return worlds->try_emplace({num_running, depth, is_full}, num_running, depth, is_full)
      .first->second;
}

// Arguments: sequences that run; pipeline depth; whether the cache is full, so that each new block
// is one that is evicted.
void BM_SteadyStep(benchmark::State& state) {
  World& world = WorldOf(static_cast<int32_t>(state.range(0)), static_cast<int32_t>(state.range(1)),
                         state.range(2) != 0);
  const int64_t evictions = world.block_stats().num_evictions;
  std::vector<double> steps;
  for (auto _ : state) {
    steps.push_back(world.Step());
    state.SetIterationTime(steps.back());
  }
  std::ranges::sort(steps);
  state.counters["p10_us"] = steps[steps.size() / 10] * 1e6;
  state.counters["p50_us"] = steps[steps.size() / 2] * 1e6;
  state.counters["evictions_a_step"] =
      static_cast<double>(world.block_stats().num_evictions - evictions) /
      static_cast<double>(state.iterations());
  QUIRE_CHECK(world.stats().num_running == state.range(0) && world.stats().num_preemptions == 0);
}
BENCHMARK(BM_SteadyStep)
    ->ArgNames({"running", "depth", "full"})
    ->Args({256, 0, 0})
    ->Args({256, 0, 1})
    ->Args({256, 1, 1})
    ->Args({2048, 0, 1})
    ->Args({2048, 0, 0})
    ->Iterations(1000)
    ->UseManualTime()
    ->Apply(Repeat);

// The time of a step in which a prompt is admitted, computed whole and listed, and of the step in
// which it ends, less that of steady steps; by block of the prompt. Arguments: blocks of the
// prompt; whether the cache is full, so that each block is one that is evicted.
void BM_Admission(benchmark::State& state) {
  const int64_t num_blocks = state.range(0);
  World& world = WorldOf(256, /*depth=*/0, state.range(1) != 0);
  std::vector<double> by_block;
  for (auto _ : state) {
    const double steady = std::min(world.Step(), world.Step());
    world.Add(NewTokens(num_blocks * kBlockSize), 1);
    const double seconds = world.Step();
    state.SetIterationTime(seconds);
    by_block.push_back((seconds - steady) / static_cast<double>(num_blocks) * 1e6);
    QUIRE_CHECK(world.stats().num_running == 256);
  }
  std::ranges::sort(by_block);
  state.counters["p10_us_a_block"] = by_block[by_block.size() / 10];
  state.counters["p50_us_a_block"] = by_block[by_block.size() / 2];
}
BENCHMARK(BM_Admission)
    ->ArgNames({"blocks", "full"})
    ->Args({64, 0})
    ->Args({64, 1})
    ->Args({2048, 0})
    ->Args({2048, 1})
    ->Iterations(40)
    ->UseManualTime()
    ->Apply(Repeat);

}  // namespace
}  // namespace quire::engine
