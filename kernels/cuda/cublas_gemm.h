#pragma once

// Matrix products by cuBLASLt, on one stream.

#include <cublasLt.h>
#include <map>
#include <memory>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/device.h"

namespace quire::kernels::cuda {

class CublasGemm {
 public:
  static absl::StatusOr<std::unique_ptr<CublasGemm>> Create(cudaStream_t stream);
  ~CublasGemm();

  // `args` have been validated. Enqueued; the same shape gets the same algorithm every time.
  absl::Status Run(const GemmArgs& args);

 private:
  // Everything that cuBLASLt's choice of an algorithm depends on.
  using Shape =
      std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, DType, DType, bool>;
  struct Plan;

  explicit CublasGemm(cudaStream_t stream);
  absl::StatusOr<Plan*> FindPlan(const GemmArgs& args);

  const cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace quire::kernels::cuda
