// Tests that a warm scheduler plans and completes steps without allocating memory. New sequences
// reuse the memory that ended sequences released. The operators new in this file count allocations.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "gtest/gtest.h"

#include "engine/disk/spill_queue.h"
#include "engine/kv/block_manager.h"
#include "engine/scheduler/scheduler.h"

namespace {

int64_t num_allocations = 0;

}  // namespace

// The operators must not be inlined. Otherwise g++ would report the call of free() as a mistake.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  ++num_allocations;
  const auto line = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(line, (size + line - 1) / line * line)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace quire::engine {
namespace {

class DeafSink final : public TokenSink {
 public:
  bool CanTake(int32_t) const override { return true; }
  void Put(TokenDelta) override {}
  void Finish(const absl::Status&, const RequestSummary&) override {}
};

struct Counts {
  int64_t steps = 0;        // steps in which no request ended
  int64_t allocations = 0;  // allocations in these steps
};

class World {
 public:
  explicit World(int32_t num_blocks, bool spills = false)
      : queue_(num_blocks, /*block_size=*/16, [] {}),
        blocks_({.num_blocks = num_blocks, .block_size = 16, .spill = spills ? &queue_ : nullptr}) {
  }

  // Runs requests, with prompts of several chunks, to their ends.
  Counts RunRound(int32_t num_requests, int32_t max_tokens) {
    constexpr int32_t kPromptLen = 75;
    for (int32_t i = 0; i < num_requests; ++i) {
      auto request = std::make_shared<Request>();
      request->prompt_ids.assign(kPromptLen, next_id_);  // a prompt unlike all others
      request->max_tokens = max_tokens;
      request->sink = std::make_shared<DeafSink>();
      Sequence sequence;
      sequence.id = next_id_++;
      sequence.tokens = request->prompt_ids;
      sequence.request = std::move(request);
      scheduler_.Add(std::move(sequence));
    }
    Counts counts;
    while (scheduler_.HasWork()) {
      const int64_t before = num_allocations;
      StepPlan plan = scheduler_.Schedule(absl::UnixEpoch());
      sampled_.tokens.clear();
      bool ends = false;
      for (const StepPlanEntry& entry : plan.entries) {
        if (entry.num_samples == 0) continue;
        const bool last = entry.sequence->num_generated() + 1 == max_tokens;
        sampled_.tokens.push_back(
            {.id = 7, .finish_reason = last ? FinishReason::kLength : FinishReason::kNone});
        ends |= last;
      }
      scheduler_.Complete(plan, sampled_);
      scheduler_.Recycle(std::move(plan));
      while (queue_.Take(offered_)) ++num_offered_;
      if (ends) continue;
      ++counts.steps;
      counts.allocations += num_allocations - before;
    }
    return counts;
  }

  BlockStats block_stats() const { return blocks_.stats(); }
  int64_t num_offered() const { return num_offered_; }

 private:
  SpillQueue queue_;
  BlockManager blocks_;
  Scheduler scheduler_{{.max_num_seqs = 32,
                        .max_num_batched_tokens = 64,
                        .max_logit_rows = 64,
                        .stalled_stream_timeout = absl::Seconds(30)},
                       blocks_};
  SampledTokens sampled_;
  int32_t next_id_ = 1;
  SpillQueue::Offered offered_;
  int64_t num_offered_ = 0;
};

TEST(SchedulerAllocationTest, AStepTakesNoMemoryOnceWarm) {
  // 500 blocks cannot hold the requests of two rounds, so the cache also evicts blocks.
  World world(500);
  EXPECT_GT(world.RunRound(32, 100).allocations, 0) << "they are counted";
  world.RunRound(32, 100);
  const Counts warm = world.RunRound(32, 100);
  EXPECT_GT(warm.steps, 100);
  EXPECT_EQ(warm.allocations, 0);
  EXPECT_GT(world.block_stats().num_evictions, 0);
}

TEST(SchedulerAllocationTest, TenThousandSteadyStepsTakeNone) {
  World world(1500);
  world.RunRound(2, 10100);
  world.RunRound(2, 10100);
  const Counts warm = world.RunRound(2, 10100);
  EXPECT_GT(warm.steps, 10000);
  EXPECT_EQ(warm.allocations, 0);
  EXPECT_GT(world.block_stats().num_evictions, 1000);
}

TEST(SchedulerAllocationTest, StepsWhoseBlocksAreWrittenToDiskTakeNone) {
  World world(500, /*spills=*/true);
  for (int round = 0; round < 5; ++round) world.RunRound(32, 100);  // every place of the queue
  const Counts warm = world.RunRound(32, 100);
  EXPECT_EQ(warm.allocations, 0);
  EXPECT_GT(world.num_offered(), static_cast<int64_t>(SpillQueue::kCapacity));
}

}  // namespace
}  // namespace quire::engine
