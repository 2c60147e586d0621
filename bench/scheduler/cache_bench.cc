// Times the operations of BlockManager on one sequence of 2^15 tokens, 2048 blocks, in a cache of
// 2^20 blocks. What is looked up was computed long ago, so that it is in no CPU cache: each
// iteration takes another of 64 sequences.

#include <vector>

#include "absl/time/time.h"

#include "base/check.h"
#include "bench/scheduler/bench.h"
#include "engine/kv/block_manager.h"

namespace quire::engine {
namespace {

constexpr int64_t kNumBlocks = 1 << 20;
constexpr int64_t kTokens = 1 << 15;
constexpr int64_t kSequences = 64;
constexpr SequenceId kFirst = 1;
constexpr SequenceId kChild = 1000;

// A cache that has the tokens of kSequences sequences, which run on if `live`.
class World {
 public:
  explicit World(bool live) {
    // Sequences grow in turns, so that each has its blocks all over the memory.
    for (int64_t i = 0; i < kSequences; ++i) prompts_.push_back(NewTokens(kTokens));
    for (int64_t end = kBlockSize; end <= kTokens; end += kBlockSize) {
      BeginStep();
      for (int64_t i = 0; i < kSequences; ++i) {
        if (end == kBlockSize) blocks_.StartSequence(kFirst + i, "root", prompts_[i], {});
        QUIRE_CHECK(blocks_.TryGrow(kFirst + i, end));
      }
      EndStep();
      for (int64_t i = 0; i < kSequences; ++i) blocks_.Commit(kFirst + i, prompts_[i], end);
    }
    if (live) return;
    for (int64_t i = 0; i < kSequences; ++i) blocks_.Release(kFirst + i);
  }

  void BeginStep() {
    ++step_;
    blocks_.BeginStep(step_, absl::UnixEpoch() + absl::Milliseconds(20 * step_));
  }
  void EndStep() {
    blocks_.EndStep(true, &copies_, &shifts_);
    blocks_.CompleteStep(step_);
  }
  // The sequence of an iteration.
  int64_t Next() { return next_ = (next_ + 1) % kSequences; }
  BlockManager& blocks() { return blocks_; }
  const std::vector<int32_t>& prompt(int64_t i) const { return prompts_[i]; }

 private:
  BlockManager blocks_{{.num_blocks = kNumBlocks, .block_size = kBlockSize}};
  std::vector<std::vector<int32_t>> prompts_;
  int64_t step_ = 0;
  int64_t next_ = 0;
  std::vector<kernels::BlockCopy> copies_;
  std::vector<kernels::KeyShift> shifts_;
};

World& Cached() {
  static auto* const world = new World(/*live=*/false);
  return *world;
}
World& Live() {
  static auto* const world = new World(/*live=*/true);
  return *world;
}

void BM_Lookup(benchmark::State& state) {
  World& world = Cached();
  for (auto _ : state) {
    const int64_t num_cached = world.blocks().NumCached("root", world.prompt(world.Next()));
    QUIRE_CHECK(num_cached == kTokens - 1);
  }
}
BENCHMARK(BM_Lookup)->Apply(Repeat);

void LookupAndPin(benchmark::State& state, World& world) {
  PinId pin = 1;
  for (auto _ : state) {
    const double begin = CpuSeconds();
    QUIRE_CHECK(world.blocks().TryPin(pin, "root", world.prompt(world.Next())));
    state.SetIterationTime(CpuSeconds() - begin);
    world.blocks().Unpin(pin++);
  }
}

// Lookup and pin of cached blocks; subtract BM_Lookup.
void BM_LookupAndPin(benchmark::State& state) { LookupAndPin(state, Cached()); }
BENCHMARK(BM_LookupAndPin)->UseManualTime()->Apply(Repeat);

// A pin of blocks that a running sequence holds, as when a prefix has just been computed.
void BM_LookupAndPinHeld(benchmark::State& state) { LookupAndPin(state, Live()); }
BENCHMARK(BM_LookupAndPinHeld)->UseManualTime()->Apply(Repeat);

void BM_Unpin(benchmark::State& state) {
  World& world = Cached();
  PinId pin = 1;
  for (auto _ : state) {
    QUIRE_CHECK(world.blocks().TryPin(pin, "root", world.prompt(world.Next())));
    const double begin = CpuSeconds();
    world.blocks().Unpin(pin++);
    state.SetIterationTime(CpuSeconds() - begin);
  }
}
BENCHMARK(BM_Unpin)->UseManualTime()->Apply(Repeat);

void BM_Fork(benchmark::State& state) {
  World& world = Live();
  for (auto _ : state) {
    const double begin = CpuSeconds();
    QUIRE_CHECK(world.blocks().TryFork(kFirst + world.Next(), kChild));
    state.SetIterationTime(CpuSeconds() - begin);
    world.blocks().Release(kChild);
  }
}
BENCHMARK(BM_Fork)->UseManualTime()->Apply(Repeat);

void BM_ReleaseOfAFork(benchmark::State& state) {
  World& world = Live();
  for (auto _ : state) {
    QUIRE_CHECK(world.blocks().TryFork(kFirst + world.Next(), kChild));
    const double begin = CpuSeconds();
    world.blocks().Release(kChild);
    state.SetIterationTime(CpuSeconds() - begin);
  }
}
BENCHMARK(BM_ReleaseOfAFork)->UseManualTime()->Apply(Repeat);

}  // namespace
}  // namespace quire::engine
