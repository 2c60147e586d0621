#pragma once

// The common code of the benchmarks of scheduler and cache.

#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"

namespace quire::engine {

inline constexpr int32_t kBlockSize = 16;

// Returns `n` tokens that no other call returns, so that no other prompt has them.
std::vector<int32_t> NewTokens(int64_t n);

// Returns the CPU time of this thread, in seconds. Other loads of the machine do not count.
double CpuSeconds();

// Runs 5 times, and reports the minimum and the median as well.
void Repeat(benchmark::internal::Benchmark* benchmark);

}  // namespace quire::engine
