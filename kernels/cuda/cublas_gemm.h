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

  // Enqueues the product. The caller has validated `args`. Products of the same shape always use
  // the same algorithm. All m in one bucket (gemm_shape.h) share an algorithm, except an m for
  // which cuBLASLt refuses this algorithm.
  absl::Status Run(const GemmArgs& args);

 private:
  struct Plan;

  explicit CublasGemm(cudaStream_t stream);
  // Returns the plan for `shape`, with the algorithm that cuBLASLt chooses. Makes the plan on the
  // first call for the shape, which is that of `args` except for m.
  absl::StatusOr<Plan*> FindPlan(const GemmShape& shape, const GemmArgs& args);
  absl::Status Multiply(const GemmArgs& args, const Plan& plan);

  const cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
  std::map<GemmShape, std::unique_ptr<Plan>> plans_;
};

}  // namespace quire::kernels::cuda
