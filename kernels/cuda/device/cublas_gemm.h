#pragma once

// Matrix products with cuBLASLt, on one stream.

#include <cublasLt.h>
#include <map>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/gemm_shape.h"

namespace quire::kernels::cuda {

struct CublasGemmOptions {
  // True: cuBLASLt may cut the depth k of a product into parts, whose float32 sums are added.
  // False: it may not.
  bool cuts_depth = true;
  // If not null, called once for each plan, with one line that describes the algorithm.
  void (*log)(std::string_view message) = nullptr;
};

class CublasGemm {
 public:
  static absl::StatusOr<std::unique_ptr<CublasGemm>> Create(cudaStream_t stream,
                                                            const CublasGemmOptions& options = {});
  ~CublasGemm();

  // Enqueues the product. The caller has validated `args`. Products of the same shape always use
  // the same algorithm. All m in one bucket (gemm_shape.h) share an algorithm, except an m for
  // which cuBLASLt refuses this algorithm. Returns Unimplemented if it has none.
  absl::Status Run(const GemmArgs& args);

 private:
  struct Plan;

  CublasGemm(cudaStream_t stream, const CublasGemmOptions& options);
  // Returns the plan for `shape`, with the algorithm that cuBLASLt chooses. Makes the plan on the
  // first call for the shape, which is that of `args` except for m.
  absl::StatusOr<Plan*> FindPlan(const GemmShape& shape, const GemmArgs& args);
  absl::Status Multiply(const GemmArgs& args, const Plan& plan);

  const cudaStream_t stream_;
  const CublasGemmOptions options_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
  std::map<GemmShape, std::unique_ptr<Plan>> plans_;
};

}  // namespace quire::kernels::cuda
