#pragma once

// Measures variants in rounds. Each round runs every variant once, so that a slow phase of a shared
// machine affects all variants.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace quire::kernels {

struct Variant {
  std::string name;
  double bytes = 0.0;
  double flops = 0.0;
  std::function<void()> run;
  std::vector<double> seconds = {};
};

// Makes later measurements count the CPU time of all threads instead of the wall time.
void CountCpuTime();

// Runs each variant once to warm up. Then runs `repeats` rounds, each of which times every variant
// once.
void Measure(std::vector<Variant>& variants, int repeats);

// Prints a table of the results. `bandwidth` is the read bandwidth in bytes a second.
void Print(const std::vector<Variant>& variants, double bandwidth);

// Reads `bytes` bytes of huge pages with `threads` threads, `repeats` times. Returns the median
// speed in bytes a second.
double ReadBandwidth(int threads, int64_t bytes, int repeats);

}  // namespace quire::kernels
