#pragma once

// What the CUDA backend runs on: a GPU (CudaDevice) or its emulation (emulator/EmulatedDevice).
//
// One stream: what is enqueued runs in order. A fault of anything enqueued appears at the next
// Synchronize(). Not thread-safe; one step thread calls it.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
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
  int64_t shared_bytes_per_block = 0;  // that a kernel may ask for
  int64_t shared_bytes_per_sm = 0;
  int64_t memory_bytes = 0;
};

// What Launch (launch.h) hands down.
struct KernelLaunch {
  LaunchConfig config;
  const void* kernel = nullptr;
  const void* params = nullptr;  // one struct
  // Runs the kernel as one thread; only where kernels are C++ functions.
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
  DType output_type = DType::kBF16;   // of d: that of a, or f32
  bool accumulate = false;            // adds to what d holds
};

// Work that Device::Record has seen, ready to be enqueued as one piece.
class Recording {
 public:
  virtual ~Recording() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  // Bytes that Allocate may still hand out.
  virtual int64_t available_bytes() const = 0;

  // Memory of the device, aligned to 256 bytes, its content undefined; ResourceExhausted when there
  // is none. Waits for the device: not for the hot path.
  virtual absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) = 0;
  // Memory of the host that copies without a detour (pinned).
  virtual absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) = 0;

  // Enqueued. Host memory stays untouched until Synchronize(), unless it is pageable: then the copy
  // may be done when the call returns.
  virtual absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyOnDevice(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status Fill(void* destination, uint8_t value, int64_t bytes) = 0;

  // Enqueued. InvalidArgument for a shape that the device refuses by its limits.
  virtual absl::Status LaunchKernel(const KernelLaunch& launch) = 0;
  virtual absl::Status Gemm(const GemmArgs& args) = 0;

  // What `enqueue` enqueues is recorded instead of run (a CUDA graph). It neither allocates nor
  // waits; what it refers to outlives the recording and stays as it is.
  virtual absl::StatusOr<std::unique_ptr<Recording>> Record(
      std::function<absl::Status()> enqueue) = 0;
  // Enqueued. `recording` is this device's and outlives the next Synchronize().
  virtual absl::Status Replay(const Recording& recording) = 0;

  // Seconds that the device spends on what `enqueue` enqueues; waits for it. Where the host
  // enqueues slower than the device runs, its time is in them: Replay() is enqueued at once.
  virtual absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> enqueue) = 0;

  virtual absl::StatusOr<TensorMap> MakeTensorMap(const TensorMapSpec& spec) = 0;

  virtual absl::Status Synchronize() = 0;
};

// InvalidArgument names what of the shape is beyond `info`, or empty. Every device calls it first.
absl::Status Validate(const LaunchConfig& config, const DeviceInfo& info);
absl::Status Validate(const GemmArgs& args);

}  // namespace quire::kernels::cuda
