// Times the scheduler and the KV cache's bookkeeping, without a model.

#include <algorithm>
#include <ctime>
#include <vector>

#include "bench/scheduler/bench.h"

namespace quire::engine {

std::vector<int32_t> NewTokens(int64_t n) {
  static uint64_t state = 1;
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<int32_t>(state >> 33);
  }
  return tokens;
}

double CpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void Repeat(benchmark::internal::Benchmark* benchmark) {
  benchmark->Repetitions(5)->ReportAggregatesOnly()->Unit(benchmark::kMicrosecond);
  benchmark->ComputeStatistics(
      "min", [](const std::vector<double>& values) { return *std::ranges::min_element(values); });
}

}  // namespace quire::engine

BENCHMARK_MAIN();
