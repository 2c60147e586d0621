#pragma once

// Variants that take turns, one repeat each, so that a slow phase of a shared machine falls on all.

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

// From here on the CPU time of all threads is counted, not the time that passes.
void CountCpuTime();

// One warm-up each, then rounds of one repeat each.
void Measure(std::vector<Variant>& variants, int repeats);

// A table; `bandwidth` in bytes a second is the ceiling.
void Print(const std::vector<Variant>& variants, double bandwidth);

// Reads `bytes` in huge pages with every thread; bytes a second.
double ReadBandwidth(int threads, int64_t bytes, int repeats);

}  // namespace quire::kernels
