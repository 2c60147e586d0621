#pragma once

// Passes every call on to another device. Tests override what they count or change.

#include <memory>
#include <utility>

#include "kernels/cuda/device.h"

namespace quire::testing {

class ForwardingDevice : public kernels::cuda::Device {
 public:
  // `device` must outlive this object.
  explicit ForwardingDevice(kernels::cuda::Device& device) : device_(device) {}

  const kernels::cuda::DeviceInfo& info() const override { return device_.info(); }
  int64_t available_bytes() const override { return device_.available_bytes(); }
  absl::StatusOr<kernels::DeviceBuffer> Allocate(int64_t bytes) override {
    return device_.Allocate(bytes);
  }
  absl::StatusOr<kernels::DeviceBuffer> AllocateHost(int64_t bytes) override {
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
  absl::StatusOr<int> BlocksPerSm(const void* kernel,
                                  const kernels::cuda::LaunchConfig& config) override {
    return device_.BlocksPerSm(kernel, config);
  }
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch& launch) override {
    return device_.LaunchKernel(launch);
  }
  absl::Status Gemm(const kernels::cuda::GemmArgs& args) override { return device_.Gemm(args); }
  absl::StatusOr<std::unique_ptr<kernels::Event>> CreateEvent() override {
    return device_.CreateEvent();
  }
  absl::Status Mark(kernels::Event& event) override { return device_.Mark(event); }
  absl::Status Wait(const kernels::Event& event) override { return device_.Wait(event); }
  absl::StatusOr<std::unique_ptr<kernels::Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override {
    return device_.Record(enqueue);
  }
  absl::Status Replay(const kernels::Recording& recording) override {
    return device_.Replay(recording);
  }
  absl::StatusOr<double> SecondsBetween(const kernels::Event& begin,
                                        const kernels::Event& end) override {
    return device_.SecondsBetween(begin, end);
  }
  absl::StatusOr<kernels::cuda::TensorMap> MakeTensorMap(
      const kernels::cuda::TensorMapSpec& spec) override {
    return device_.MakeTensorMap(spec);
  }
  absl::Status Synchronize() override { return device_.Synchronize(); }

 private:
  kernels::cuda::Device& device_;
};

}  // namespace quire::testing
