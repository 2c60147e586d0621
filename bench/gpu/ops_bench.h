#pragma once

// Measures the ops of a step other than attention, at the sizes of Llama 3 8B in bf16.

#include <vector>

#include "bench/gpu/bench_case.h"
#include "bench/gpu/measure.h"
#include "kernels/cuda/device.h"

namespace quire::bench {

std::vector<Row> RunOps(kernels::cuda::Device& device, Stopwatch& stopwatch,
                        const Ceilings& ceilings, Size size);
// Measures Linear, with its epilogue where the model has one. Linear has a suite of its own because
// most of its time is spent in cuBLASLt.
std::vector<Row> RunLinear(kernels::cuda::Device& device, Stopwatch& stopwatch,
                           const Ceilings& ceilings, Size size);

}  // namespace quire::bench
