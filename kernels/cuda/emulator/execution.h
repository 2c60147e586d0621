#pragma once

// Runs the whole grid of a kernel on this CPU thread, block after block.

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "kernels/cuda/emulator/thread_block.h"
#include "kernels/cuda/launch_config.h"

namespace quire::kernels::cuda::emulator {

// Runs `kernel` once for each thread of the grid. `compute_capability` is that of the emulated
// chip, for example 90 for 9.0. Returns Internal for the first misuse. The message names the block,
// and for most misuses also the thread, the file and the line.
absl::Status RunGrid(const LaunchConfig& config, absl::FunctionRef<void()> kernel,
                     const ExecutionOptions& options, int compute_capability);

}  // namespace quire::kernels::cuda::emulator
