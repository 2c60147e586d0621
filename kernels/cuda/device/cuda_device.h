#pragma once

// CudaDevice uses a GPU through the CUDA runtime. The runtime keeps a current GPU for each thread.
// Each function that depends on the current GPU first selects the GPU of this device. So any thread
// may call a CudaDevice, but only one thread at a time.

#include <cuda_runtime_api.h>
#include <memory>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/device/cublas_gemm.h"
#include "kernels/cuda/device/device.h"

namespace quire::kernels::cuda {

struct CudaDeviceOptions {
  // False: a kernel without machine code for the GPU is refused. True: the driver compiles its PTX,
  // which takes minutes for all kernels, and gives code for an older chip.
  bool compile_ptx = false;
  CublasGemmOptions gemm;
};

class CudaDevice : public Device {
 public:
  // Returns Unavailable when there is no driver or no GPU `ordinal`. Returns FailedPrecondition
  // when the compute capability of the GPU is below 8.0.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int ordinal = 0,
                                                            const CudaDeviceOptions& options = {});
  ~CudaDevice() override;

  const DeviceInfo& info() const override { return info_; }
  int64_t available_bytes() const override;

  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override;
  absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) override;

  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override;
  absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) override;
  absl::Status CopyOnDevice(void* destination, const void* source, int64_t bytes) override;
  absl::Status Fill(void* destination, uint8_t value, int64_t bytes) override;

  absl::StatusOr<int> BlocksPerSm(const void* kernel, const LaunchConfig& config) override;
  // Returns FailedPrecondition for a kernel that the options refuse.
  absl::Status LaunchKernel(const KernelLaunch& launch) override;
  absl::Status Gemm(const GemmArgs& args) override;

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  absl::Status Mark(Event& event) override;
  absl::Status Wait(const Event& event) override;
  absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) override;

  absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override;
  absl::Status Replay(const Recording& recording) override;
  absl::StatusOr<TensorMap> MakeTensorMap(const TensorMapSpec& spec) override;

  absl::Status Synchronize() override;

 private:
  struct PreparedKernel {
    bool may_overlap = false;   // its code waits for the launch before it (GridDependencyWait)
    bool large_shared = false;  // its limit on shared memory has been raised
  };

  CudaDevice(int ordinal, const CudaDeviceOptions& options)
      : ordinal_(ordinal), options_(options) {}
  // Makes this the current GPU of the calling thread.
  absl::Status MakeCurrent() const;
  // Looks at the code of `kernel` once, and allows it the shared memory of `config`.
  absl::StatusOr<PreparedKernel> Prepare(const void* kernel, const LaunchConfig& config);

  const int ordinal_;
  const CudaDeviceOptions options_;
  DeviceInfo info_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CublasGemm> gemm_;
  std::unordered_map<const void*, PreparedKernel> prepared_;
};

}  // namespace quire::kernels::cuda
