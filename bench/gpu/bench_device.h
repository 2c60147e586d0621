#pragma once

// The device that a build of the benchmark runs on.

#include <memory>

#include "absl/status/statusor.h"

#include "kernels/cuda/device.h"

namespace quire::bench {

// Makes a GPU in a QUIRE_CUDA build, or else the emulated device, whose times mean nothing.
absl::StatusOr<std::unique_ptr<kernels::cuda::Device>> MakeBenchDevice();
bool RunsOnGpu();

}  // namespace quire::bench
