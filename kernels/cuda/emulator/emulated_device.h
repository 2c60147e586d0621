#pragma once

// A Device without a GPU. Its memory is host memory, and the emulator runs its kernels.
//
// Enqueued work runs as late as CUDA allows, in Wait() and Synchronize() (work_queue.h). The device
// keeps the first fault. After a fault, every call that allocates, enqueues or waits fails, as on a
// GPU.

#include <map>
#include <memory>
#include <string_view>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/emulator/access_counter.h"
#include "kernels/cuda/emulator/thread_block.h"
#include "kernels/cuda/emulator/work_queue.h"

namespace quire::kernels::cuda::emulator {

struct EmulatorOptions {
  ExecutionOptions execution;
  int compute_capability = 90;
  // The number of multiprocessors. It is small so that each block of a persistent grid gets several
  // work items.
  int num_sms = 4;
  bool counts_accesses = false;  // for access_counts(); makes kernels several times slower
};

class EmulatedDevice : public Device {
 public:
  explicit EmulatedDevice(const EmulatorOptions& options = {});

  const DeviceInfo& info() const override { return info_; }
  // Returns the bytes of info().memory_bytes that no buffer has. Allocate gives more than these.
  int64_t available_bytes() const override;

  // Returns memory filled with poison, because no caller may rely on its content. Only enqueued
  // work may access the memory. AddressSanitizer reports every access by host code.
  //
  // Memory that is freed becomes poison. Its addresses are not used again for a while, so a kernel
  // with a stale address in its parameters is a fault.
  //
  // An allocation of 256 MiB or more is neither filled nor guarded by AddressSanitizer. The system
  // provides memory only for its used pages, so a cache of more than 2^31 elements can be tested.
  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override;
  absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) override;

  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override;
  absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) override;
  absl::Status CopyOnDevice(void* destination, const void* source, int64_t bytes) override;
  absl::Status Fill(void* destination, uint8_t value, int64_t bytes) override;

  // Counts shared memory and threads. The emulator has no registers.
  absl::StatusOr<int> BlocksPerSm(const void* kernel, const LaunchConfig& config) override;
  absl::Status LaunchKernel(const KernelLaunch& launch) override;
  absl::Status Gemm(const GemmArgs& args) override;

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  absl::Status Mark(Event& event) override;
  // Returns FailedPrecondition if the event has no mark.
  absl::Status Wait(const Event& event) override;

  // Fails if `enqueue` allocated, freed or waited, even if it returns OK. Replay fails if memory
  // that a recorded copy, fill or product uses was freed.
  absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override;
  absl::Status Replay(const Recording& recording) override;
  // Returns the seconds that the host takes to run the work. The time says nothing about a GPU.
  absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) override;

  absl::StatusOr<TensorMap> MakeTensorMap(const TensorMapSpec& spec) override;

  absl::Status Synchronize() override;

  // Returns, for each kernel (KernelLaunch::kernel) that was launched, what its accesses to memory
  // cost so far. Empty without EmulatorOptions::counts_accesses.
  const std::map<const void*, AccessCounts>& access_counts() const { return access_counts_; }

 private:
  // The state that buffers share with the device. A buffer may outlive the device.
  struct State;

  // Enqueues the command, or adds it to the recording that is being made.
  absl::Status Enqueue(std::shared_ptr<const Command> command);
  // Runs the enqueued work up to the command `last`, or all of it if `last` is null.
  absl::Status RunQueue(const Command* last);
  // Returns an error while a recording is being made, which it makes void, and always after a
  // fault.
  absl::Status CheckMayWait() const;
  // Returns an error if a recording is being made and `host` is not memory of AllocateHost.
  absl::Status CheckMayCopy(std::string_view name, const MemoryRange& host) const;

  const ExecutionOptions execution_;
  const bool counts_accesses_;
  DeviceInfo info_;
  const std::shared_ptr<State> state_;
  absl::Status fault_;  // the first fault
  std::map<const void*, AccessCounts> access_counts_;
};

}  // namespace quire::kernels::cuda::emulator
