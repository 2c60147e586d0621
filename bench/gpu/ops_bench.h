#pragma once

// Measures the ops of a step other than attention, at the sizes of Llama 3 8B in bf16.

#include <functional>
#include <string>

#include "absl/status/status.h"

#include "bench/gpu/bench_case.h"
#include "bench/gpu/measure.h"
#include "kernels/cuda/device/device.h"

namespace quire::bench {

struct OpsRun {
  kernels::cuda::Device& device;
  Stopwatch& stopwatch;
  const Ceilings& ceilings;
  Size size;
  const std::string& filter;  // only cases whose name contains this
  const Emit& emit;
  // Asked before each op. After an error no op begins, and one row has the error.
  std::function<absl::Status()> may_go_on;
};

void RunOps(const OpsRun& run);
// Measures Linear, with its epilogue where the model has one. Linear has a suite of its own because
// most of its time is spent in cuBLASLt.
void RunLinear(const OpsRun& run);

}  // namespace quire::bench
