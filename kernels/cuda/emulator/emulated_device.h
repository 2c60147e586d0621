#pragma once

// A Device without a GPU: memory is the host's, and the emulator runs the kernels.
//
// Work runs as late as CUDA allows, in Synchronize() (work_queue.h). The first fault is kept: as on
// a GPU, every later call fails.

#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/emulator/thread_block.h"
#include "kernels/cuda/emulator/work_queue.h"

namespace quire::kernels::cuda::emulator {

struct EmulatorOptions {
  ExecutionOptions execution;
  int compute_capability = 90;
  // Few, so that a persistent grid gives each block several work items.
  int num_sms = 4;
};

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

  absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override;
  absl::Status Replay(const Recording& recording) override;
  // The host's seconds, which tell nothing about a GPU.
  absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> enqueue) override;

  absl::StatusOr<TensorMap> MakeTensorMap(const TensorMapSpec& spec) override;

  absl::Status Synchronize() override;

 private:
  // What buffers need that outlive the device.
  struct State;

  // Enqueues the command, or adds it to the recording that is being made.
  absl::Status Enqueue(std::shared_ptr<const Command> command);
  // Fails for ever after a fault, and while a recording is made.
  absl::Status CheckMayWait() const;

  const ExecutionOptions execution_;
  DeviceInfo info_;
  const std::shared_ptr<State> state_;
  CommandList* recording_ = nullptr;  // while one is made
  absl::Status fault_;                // the first
};

}  // namespace quire::kernels::cuda::emulator
