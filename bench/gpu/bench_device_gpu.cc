#include "bench/gpu/bench_device.h"
#include "kernels/cuda/device/cuda_device.h"

namespace quire::bench {

absl::StatusOr<std::unique_ptr<kernels::cuda::Device>> MakeBenchDevice() {
  return kernels::cuda::CudaDevice::Create();
}

bool RunsOnGpu() { return true; }

}  // namespace quire::bench
