#pragma once

// Runs the whole grid of a kernel on this CPU thread, block after block.

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "kernels/cuda/emulator/thread_block.h"
#include "kernels/cuda/launch_config.h"

namespace quire::kernels::cuda::emulator {

// `kernel` is the work of one thread. `compute_capability` is the chip's, 90 for 9.0. Internal
// names the first misuse, with block, thread, file and line.
absl::Status RunGrid(const LaunchConfig& config, absl::FunctionRef<void()> kernel,
                     const ExecutionOptions& options, int compute_capability);

}  // namespace quire::kernels::cuda::emulator
