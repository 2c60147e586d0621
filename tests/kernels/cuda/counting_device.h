#pragma once

// A device that counts what is enqueued on it.

#include <memory>
#include <utility>

#include "kernels/cuda/device/forwarding_device.h"

namespace quire::testing {

class CountingDevice final : public kernels::cuda::ForwardingDevice {
 public:
  // Counts kernels, GEMMs, copies, fills and replays in `num_enqueued`, which must outlive this
  // object.
  CountingDevice(std::unique_ptr<kernels::cuda::Device> device, int& num_enqueued)
      : ForwardingDevice(std::move(device)), num_enqueued_(num_enqueued) {}

  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override {
    ++num_enqueued_;
    return ForwardingDevice::CopyToDevice(destination, source, bytes);
  }
  absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) override {
    ++num_enqueued_;
    return ForwardingDevice::CopyToHost(destination, source, bytes);
  }
  absl::Status CopyOnDevice(void* destination, const void* source, int64_t bytes) override {
    ++num_enqueued_;
    return ForwardingDevice::CopyOnDevice(destination, source, bytes);
  }
  absl::Status Fill(void* destination, uint8_t value, int64_t bytes) override {
    ++num_enqueued_;
    return ForwardingDevice::Fill(destination, value, bytes);
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
  absl::Status Replay(const kernels::Recording& recording) override {
    ++num_enqueued_;
    return ForwardingDevice::Replay(recording);
  }

 private:
  int& num_enqueued_;
};

}  // namespace quire::testing
