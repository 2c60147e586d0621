#pragma once

// A device that counts what the host asks another device for.

#include <memory>
#include <utility>

#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/device_counts.h"

namespace quire::kernels::cuda {

class CountedDevice final : public ForwardingDevice {
 public:
  explicit CountedDevice(std::unique_ptr<Device> device) : ForwardingDevice(std::move(device)) {}

  // Those of attention and of sampled rows are zero: the device does not know them.
  const DeviceCounts& counts() const { return counts_; }

  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override {
    Add(DeviceCount::kAllocations, 1);
    return ForwardingDevice::Allocate(bytes);
  }
  absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) override {
    Add(DeviceCount::kAllocations, 1);
    return ForwardingDevice::AllocateHost(bytes);
  }
  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override {
    Add(DeviceCount::kUploads, 1);
    Add(DeviceCount::kUploadedBytes, bytes);
    return ForwardingDevice::CopyToDevice(destination, source, bytes);
  }
  absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override {
    Add(DeviceCount::kRecordings, 1);
    return ForwardingDevice::Record(enqueue);
  }
  absl::Status Replay(const Recording& recording) override {
    Add(DeviceCount::kReplays, 1);
    return ForwardingDevice::Replay(recording);
  }
  absl::Status Synchronize() override {
    Add(DeviceCount::kSynchronizations, 1);
    return ForwardingDevice::Synchronize();
  }

 private:
  void Add(DeviceCount count, int64_t n) { counts_[static_cast<size_t>(count)] += n; }

  DeviceCounts counts_{};
};

}  // namespace quire::kernels::cuda
