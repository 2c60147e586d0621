#pragma once

// An emulated device that keeps a log of launches, replays and steps in flight.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/emulator/emulated_device.h"

namespace quire::testing {

struct DeviceLog {
  // The bytes of shared memory of each launch. Attention on tensor cores holds tiles of keys and
  // values there, so it needs more than any other kernel.
  std::vector<int64_t> shared_bytes;
  // The number of marks that nobody has waited for yet, and its maximum so far.
  int64_t marks = 0, most_marks = 0;
  int64_t replays = 0;
};

class RecordingDevice final : public kernels::cuda::emulator::EmulatedDevice {
 public:
  // `log` must outlive this object.
  explicit RecordingDevice(DeviceLog& log) : log_(log) {}
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch& launch) override {
    log_.shared_bytes.push_back(launch.config.shared_bytes);
    return EmulatedDevice::LaunchKernel(launch);
  }
  absl::Status Mark(kernels::Event& event) override {
    log_.most_marks = std::max(log_.most_marks, ++log_.marks);
    return EmulatedDevice::Mark(event);
  }
  absl::Status Wait(const kernels::Event& event) override {
    --log_.marks;
    return EmulatedDevice::Wait(event);
  }
  absl::Status Replay(const kernels::Recording& recording) override {
    ++log_.replays;
    return EmulatedDevice::Replay(recording);
  }

 private:
  DeviceLog& log_;
};

}  // namespace quire::testing
