#pragma once

// The device of the CUDA backend: a GPU (CudaDevice) or its emulation (emulator/EmulatedDevice).
//
// One stream: enqueued work runs in order, at the latest while Synchronize() waits for it. A fault
// in any of it appears there, and every later call fails. Not thread-safe; one step thread calls
// it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/launch_config.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/device_buffer.h"
#include "kernels/dtype.h"

namespace quire::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int compute_capability = 0;  // 90 for 9.0
  int num_sms = 0;
  int64_t shared_bytes_per_block = 0;  // the most that a kernel may use
  int64_t shared_bytes_per_sm = 0;
  int64_t memory_bytes = 0;
};

// A launch as Launch (launch.h) passes it on.
struct KernelLaunch {
  LaunchConfig config;
  const void* kernel = nullptr;
  std::span<const std::byte> params;  // one struct, which is copied
  // Runs the kernel as one thread; null unless kernels are C++ functions.
  void (*call)(const void* kernel, const void* params) = nullptr;
};

// d[m, n] = a[m, k] . b[n, k]^T (+ d), all row-major; sums in float32, one rounding on store.
struct GemmArgs {
  void* d = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;  // elements from one row to the next
  DType type = DType::kBF16;          // of a and b
  DType output_type = DType::kBF16;   // of d: the type of a, or f32
  bool accumulate = false;            // adds to the content of d
};

// Work recorded by Device::Record, ready to be enqueued as one piece.
class Recording {
 public:
  virtual ~Recording() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  // Bytes that Allocate may still return.
  virtual int64_t available_bytes() const = 0;

  // Device memory with undefined content, aligned to 256 bytes; ResourceExhausted when none is
  // left. May wait for the device: not for the hot path. Must not be freed before enqueued work
  // that uses it has run.
  virtual absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) = 0;
  // Host memory for direct copies (pinned).
  virtual absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) = 0;

  // Enqueued. Until Synchronize(), the caller must not change the source and must not touch the
  // target. A copy from or to host memory that is not pinned may be complete when the call returns.
  virtual absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyOnDevice(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status Fill(void* destination, uint8_t value, int64_t bytes) = 0;

  // Enqueued. InvalidArgument for a shape that the device refuses by its limits.
  virtual absl::Status LaunchKernel(const KernelLaunch& launch) = 0;
  virtual absl::Status Gemm(const GemmArgs& args) = 0;

  // Records the work that `enqueue` enqueues instead of running it (a CUDA graph). `enqueue` is
  // called once, and must neither allocate nor wait. Parameters are recorded as they are; the
  // memory that they point to must outlive the recording, and is read at each replay.
  virtual absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) = 0;
  // Enqueued. `recording` must be this device's and outlive the next Synchronize().
  virtual absl::Status Replay(const Recording& recording) = 0;

  // Seconds that the device spends on the work that `enqueue` enqueues; waits for it. If the host
  // enqueues more slowly than the device runs, the host's time is included; Replay() avoids this,
  // since it enqueues everything at once.
  virtual absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> enqueue) = 0;

  virtual absl::StatusOr<TensorMap> MakeTensorMap(const TensorMapSpec& spec) = 0;

  virtual absl::Status Synchronize() = 0;
};

// InvalidArgument names the part of the shape that exceeds `info`, or is empty. Every device calls
// it first.
absl::Status Validate(const LaunchConfig& config, const DeviceInfo& info);
absl::Status Validate(const GemmArgs& args);

}  // namespace quire::kernels::cuda
