#include "bench/gpu/bench_device.h"
#include "kernels/cuda/emulator/emulated_device.h"

namespace quire::bench {

absl::StatusOr<std::unique_ptr<kernels::cuda::Device>> MakeBenchDevice() {
  return std::make_unique<kernels::cuda::emulator::EmulatedDevice>();
}

bool RunsOnGpu() { return false; }

}  // namespace quire::bench
