#pragma once

// The device of the CUDA backend: a GPU (CudaDevice) or its emulation (emulator/EmulatedDevice).
//
// A device has one stream. Enqueued work runs in order, at the latest while Wait() or Synchronize()
// waits for it. If enqueued work has a fault, the call that waits reports the fault, and no later
// work runs. Not thread-safe: one thread at a time calls a device, at last the step thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/math.h"
#include "kernels/cuda/device/launch_config.h"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/enqueued_work.h"

namespace quire::kernels::cuda {

struct DeviceInfo {
  std::string name;
  std::string pci_bus_id;      // such as "0000:17:00.0"
  int compute_capability = 0;  // 90 for 9.0
  int num_sms = 0;
  int64_t shared_bytes_per_block = 0;  // the most that one block may use
  int64_t shared_bytes_per_sm = 0;
  int threads_per_sm = 0;
  int64_t memory_bytes = 0;
};

// A kernel launch that the function Launch (launch.h) passes to Device::LaunchKernel.
struct KernelLaunch {
  LaunchConfig config;
  const void* kernel = nullptr;
  std::span<const std::byte> params;  // one struct; LaunchKernel copies it
  // Runs one thread of the kernel, on the emulator. Null if nvcc compiles the kernels.
  void (*call)(const void* kernel, const void* params) = nullptr;
};

// The float32 scales of a product of two matrices in e4m3. A number of a matrix is that of its code
// times its scale.
//   kNone    the matrices are not e4m3
//   kRows    one scale for each row: a_scales [m], b_scales [n]
//   kBlocks  a_scales [k / 128, m]: one for 128 columns of a row. b_scales [n / 128,
//            BlockScaleStride(k)]: one for 128 x 128 numbers. n and k are multiples of 128, and m
//            of 4.
enum class GemmScales : uint8_t { kNone, kRows, kBlocks };

inline constexpr int64_t kScratchAlignment = 256;  // bytes, of each array in scratch memory
inline constexpr int64_t kScaledGemmBlock = 128;   // rows and columns of a scale of kBlocks
inline constexpr int64_t kScaledGemmUnit = 16;  // n and k of a product in e4m3 are multiples of it

// Returns the elements from one row of b_scales to the next, with kBlocks. cuBLASLt wants rows of
// whole vectors of 16 bytes.
constexpr int64_t BlockScaleStride(int64_t k) {
  return base::RoundUp(k / kScaledGemmBlock, int64_t{4});
}

// The arguments of the product d[m, n] = a[m, k] . b[n, k]^T (+ d). All matrices are row-major.
// Sums are in float32, with one rounding on store. Their order depends on the bucket of m
// (kernels/row_bucket.h), n, k, the strides, the alignments, the types and `accumulate`, so a row
// has the same bits only in products in which all of these are equal. A product in e4m3 needs a GPU
// of compute capability 9.0, and matrices and rows at multiples of 16 bytes.
struct GemmArgs {
  void* d = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;  // elements from one row to the next
  DType type = DType::kBF16;          // of a and b
  DType output_type = DType::kBF16;   // of d: the type of a, or f32; if a is e4m3, f32, f16 or bf16
  bool accumulate = false;            // true: the product is added to the content of d
  GemmScales scales = GemmScales::kNone;
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  // Returns how many bytes Allocate can still return.
  virtual int64_t available_bytes() const = 0;

  // Returns device memory with undefined content, aligned to 256 bytes, or ResourceExhausted when
  // no memory is left. May wait for the device, so it is not for the hot path. The memory must not
  // be freed before the enqueued work that uses it has run.
  virtual absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) = 0;
  // Returns pinned host memory, which the device copies from and to directly.
  virtual absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) = 0;

  // The next four functions enqueue their work. Until Wait() or Synchronize() has waited for it,
  // the caller must not change the source and must not touch the destination. A copy from or to
  // host memory that is not pinned may be complete when the call returns.
  virtual absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyOnDevice(void* destination, const void* source, int64_t bytes) = 0;
  virtual absl::Status Fill(void* destination, uint8_t value, int64_t bytes) = 0;

  // Returns how many blocks of `kernel` (KernelLaunch::kernel) a multiprocessor runs at once, with
  // the block and the shared memory of `config`; 0 if not even one fits. May be slow, so the caller
  // keeps the answer.
  virtual absl::StatusOr<int> BlocksPerSm(const void* kernel, const LaunchConfig& config) = 0;
  // Enqueues the kernel. Returns InvalidArgument for a shape beyond the limits of the device.
  virtual absl::Status LaunchKernel(const KernelLaunch& launch) = 0;
  // Enqueues the matrix product. Returns Unimplemented for a product in e4m3 of a shape for which
  // the device has no algorithm.
  virtual absl::Status Gemm(const GemmArgs& args) = 0;

  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // Moves the mark of `event` to the end of the work enqueued so far.
  virtual absl::Status Mark(Event& event) = 0;
  // Waits for the work before the mark of `event`. Mark() must have been called for `event`. Later
  // work may still run.
  virtual absl::Status Wait(const Event& event) = 0;
  // Returns the time that the device took from one mark to the other, in seconds. The work before
  // both marks must have been waited for.
  virtual absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) = 0;

  // Records the work that `enqueue` enqueues, and does not run the work. On a GPU the recording is
  // a CUDA graph. `enqueue` is called once, and must neither allocate, free nor wait. The recording
  // contains the values of all parameters. The memory to which parameters point is read at each
  // replay, so it must outlive the recording. Host memory must come from AllocateHost.
  virtual absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) = 0;
  // Enqueues the work of `recording`, which must come from this device and must outlive the next
  // Synchronize().
  virtual absl::Status Replay(const Recording& recording) = 0;

  virtual absl::StatusOr<TensorMap> MakeTensorMap(const TensorMapSpec& spec) = 0;

  virtual absl::Status Synchronize() = 0;
};

// Waits for the work that `enqueue` enqueues, and returns the seconds that the device spends on
// this work. If the host enqueues more slowly than the device runs, the result includes time of the
// host. Replay() avoids this: it enqueues all work in one call.
absl::StatusOr<double> SecondsOf(Device& device, absl::FunctionRef<absl::Status()> enqueue);

// Returns InvalidArgument if a part of the launch shape is empty or exceeds a limit of CUDA or of
// `info`. The error names the part. LaunchKernel of every device calls this function first.
absl::Status Validate(const LaunchConfig& config, const DeviceInfo& info);
absl::Status Validate(const GemmArgs& args);

}  // namespace quire::kernels::cuda
