#pragma once

// The device that a build of the benchmark runs on.

#include <memory>

#include "absl/status/statusor.h"

#include "kernels/cuda/device/device.h"

namespace quire::bench {

// Returns a GPU in a QUIRE_CUDA build, and the emulated device in any other build. Times on the
// emulated device mean nothing.
absl::StatusOr<std::unique_ptr<kernels::cuda::Device>> MakeBenchDevice();
bool RunsOnGpu();

}  // namespace quire::bench
