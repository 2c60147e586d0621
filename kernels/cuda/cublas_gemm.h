#pragma once

// Matrix products with cuBLASLt, on one stream.

#include <cublasLt.h>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm_shape.h"

namespace quire::kernels::cuda {

class CublasGemm {
 public:
  static absl::StatusOr<std::unique_ptr<CublasGemm>> Create(cudaStream_t stream);
  ~CublasGemm();

  // `args` have been validated. Enqueued. The same shape gets the same algorithm every time; all m
  // of a bucket (gemm_shape.h) share one unless the algorithm refuses an m.
  absl::Status Run(const GemmArgs& args);

 private:
  struct Plan;

  explicit CublasGemm(cudaStream_t stream);
  // The algorithm that cuBLASLt chooses for `shape`.
  absl::StatusOr<Plan*> FindPlan(const GemmShape& shape);
  absl::Status Multiply(const GemmArgs& args, const Plan& plan);

  const cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
  std::map<GemmShape, std::unique_ptr<Plan>> plans_;
};

}  // namespace quire::kernels::cuda
