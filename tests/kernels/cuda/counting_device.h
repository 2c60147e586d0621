#pragma once

// A device that counts what is enqueued on it.

#include <memory>
#include <utility>

#include "kernels/cuda/device.h"

namespace quire::testing {

class CountingDevice final : public kernels::cuda::Device {
 public:
  // Counts kernels, GEMMs, copies, fills and replays in `num_enqueued`, which must outlive this
  // object.
  CountingDevice(std::unique_ptr<kernels::cuda::Device> device, int& num_enqueued)
      : device_(std::move(device)), num_enqueued_(num_enqueued) {}

  const kernels::cuda::DeviceInfo& info() const override { return device_->info(); }
  int64_t available_bytes() const override { return device_->available_bytes(); }
  absl::StatusOr<kernels::DeviceBuffer> Allocate(int64_t bytes) override {
    return device_->Allocate(bytes);
  }
  absl::StatusOr<kernels::DeviceBuffer> AllocateHost(int64_t bytes) override {
    return device_->AllocateHost(bytes);
  }

  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override {
    ++num_enqueued_;
    return device_->CopyToDevice(destination, source, bytes);
  }
  absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) override {
    ++num_enqueued_;
    return device_->CopyToHost(destination, source, bytes);
  }
  absl::Status CopyOnDevice(void* destination, const void* source, int64_t bytes) override {
    ++num_enqueued_;
    return device_->CopyOnDevice(destination, source, bytes);
  }
  absl::Status Fill(void* destination, uint8_t value, int64_t bytes) override {
    ++num_enqueued_;
    return device_->Fill(destination, value, bytes);
  }
  // Kernels and GEMMs are counted but do not run, because the tensors of a test may share memory.
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch&) override {
    ++num_enqueued_;
    return absl::OkStatus();
  }
  absl::Status Gemm(const kernels::cuda::GemmArgs&) override {
    ++num_enqueued_;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<kernels::cuda::Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override {
    return device_->Record(enqueue);
  }
  absl::Status Replay(const kernels::cuda::Recording& recording) override {
    ++num_enqueued_;
    return device_->Replay(recording);
  }
  absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> enqueue) override {
    return device_->SecondsOf(enqueue);
  }
  absl::StatusOr<kernels::cuda::TensorMap> MakeTensorMap(
      const kernels::cuda::TensorMapSpec& spec) override {
    return device_->MakeTensorMap(spec);
  }
  absl::Status Synchronize() override { return device_->Synchronize(); }

 private:
  const std::unique_ptr<kernels::cuda::Device> device_;
  int& num_enqueued_;
};

}  // namespace quire::testing
