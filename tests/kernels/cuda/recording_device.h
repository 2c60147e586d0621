#pragma once

// An emulated device that notes the shared memory of each launch. Attention on tensor cores holds
// tiles of keys and values there, so it needs more than every other kernel.

#include <cstdint>
#include <vector>

#include "kernels/cuda/emulator/emulated_device.h"

namespace quire::testing {

class RecordingDevice final : public kernels::cuda::emulator::EmulatedDevice {
 public:
  // Appends the bytes of each launch to `shared_bytes`, which must outlive this object.
  explicit RecordingDevice(std::vector<int64_t>& shared_bytes) : shared_bytes_(shared_bytes) {}
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch& launch) override {
    shared_bytes_.push_back(launch.config.shared_bytes);
    return EmulatedDevice::LaunchKernel(launch);
  }

 private:
  std::vector<int64_t>& shared_bytes_;
};

}  // namespace quire::testing
