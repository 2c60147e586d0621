#pragma once

// A Device without a GPU: memory is the host's, and the emulator runs kernels when they are
// launched.
//
// A fault that a GPU would report only later is kept until Synchronize(), and nothing runs in
// between.

#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace quire::kernels::cuda::emulator {

struct EmulatorOptions {
  ExecutionOptions execution;
  int compute_capability = 90;
  // Few, so that a persistent grid gives each block several work items.
  int num_sms = 4;
};

class DeviceMemory;

class EmulatedDevice : public Device {
 public:
  explicit EmulatedDevice(const EmulatorOptions& options = {});

  const DeviceInfo& info() const override { return info_; }
  int64_t available_bytes() const override { return info_.memory_bytes; }

  // Filled with poison, since nobody may rely on the content. Beyond 256 MiB it stays untouched,
  // and is not even backed by memory until used, so that a cache larger than 2^31 elements can be
  // tested. AddressSanitizer reports host code that accesses it other than by a copy.
  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override;
  absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) override;

  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override;
  absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) override;
  absl::Status CopyOnDevice(void* destination, const void* source, int64_t bytes) override;
  absl::Status Fill(void* destination, uint8_t value, int64_t bytes) override;

  absl::Status LaunchKernel(const KernelLaunch& launch) override;
  absl::Status Gemm(const GemmArgs& args) override;

  // Stores `enqueue` and calls it for each replay.
  absl::StatusOr<std::unique_ptr<Recording>> Record(std::function<absl::Status()> enqueue) override;
  absl::Status Replay(const Recording& recording) override;
  // The host's seconds, which tell nothing about a GPU.
  absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> enqueue) override;

  absl::StatusOr<TensorMap> MakeTensorMap(const TensorMapSpec& spec) override;

  absl::Status Synchronize() override;

 private:
  const ExecutionOptions execution_;
  DeviceInfo info_;
  absl::Status fault_;  // of work enqueued since the last Synchronize()
  // The live allocations. Buffers may outlive the device.
  const std::shared_ptr<DeviceMemory> memory_;
};

}  // namespace quire::kernels::cuda::emulator
