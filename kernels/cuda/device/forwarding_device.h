#pragma once

// Passes every call on to another device. Derived classes override what they count or change.

#include <memory>
#include <utility>

#include "kernels/cuda/device/device.h"

namespace quire::kernels::cuda {

class ForwardingDevice : public Device {
 public:
  // `device` must outlive this object.
  explicit ForwardingDevice(Device& device) : device_(device) {}
  // Owns the other device.
  explicit ForwardingDevice(std::unique_ptr<Device> device)
      : owned_(std::move(device)), device_(*owned_) {}

  const DeviceInfo& info() const override { return device_.info(); }
  int64_t available_bytes() const override { return device_.available_bytes(); }
  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override { return device_.Allocate(bytes); }
  absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) override {
    return device_.AllocateHost(bytes);
  }
  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override {
    return device_.CopyToDevice(destination, source, bytes);
  }
  absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) override {
    return device_.CopyToHost(destination, source, bytes);
  }
  absl::Status CopyOnDevice(void* destination, const void* source, int64_t bytes) override {
    return device_.CopyOnDevice(destination, source, bytes);
  }
  absl::Status Fill(void* destination, uint8_t value, int64_t bytes) override {
    return device_.Fill(destination, value, bytes);
  }
  absl::StatusOr<int> BlocksPerSm(const void* kernel, const LaunchConfig& config) override {
    return device_.BlocksPerSm(kernel, config);
  }
  absl::Status LaunchKernel(const KernelLaunch& launch) override {
    return device_.LaunchKernel(launch);
  }
  absl::Status Gemm(const GemmArgs& args) override { return device_.Gemm(args); }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return device_.CreateEvent(); }
  absl::Status Mark(Event& event) override { return device_.Mark(event); }
  absl::Status Wait(const Event& event) override { return device_.Wait(event); }
  absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override {
    return device_.Record(enqueue);
  }
  absl::Status Replay(const Recording& recording) override { return device_.Replay(recording); }
  absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) override {
    return device_.SecondsBetween(begin, end);
  }
  absl::StatusOr<TensorMap> MakeTensorMap(const TensorMapSpec& spec) override {
    return device_.MakeTensorMap(spec);
  }
  absl::Status Synchronize() override { return device_.Synchronize(); }

 private:
  const std::unique_ptr<Device> owned_;  // null: others own device_
  Device& device_;
};

}  // namespace quire::kernels::cuda
