#include "tests/kernels/cuda/device_testing.h"

#include "kernels/cuda/emulator/emulated_device.h"

namespace quire::testing {

std::unique_ptr<kernels::cuda::Device> MakeDevice(ThreadOrder order, uint64_t seed) {
  return std::make_unique<kernels::cuda::emulator::EmulatedDevice>(
      kernels::cuda::emulator::EmulatorOptions{.execution = {.order = order, .seed = seed}});
}

}  // namespace quire::testing
