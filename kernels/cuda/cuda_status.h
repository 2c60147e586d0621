#pragma once

// Errors of the CUDA runtime as absl::Status.

#include <cuda_runtime_api.h>
#include <string_view>

#include "absl/status/status.h"

namespace quire::kernels::cuda {

// ResourceExhausted when memory is lacking, else Internal; `what` names the failed action.
absl::Status ToStatus(cudaError_t error, std::string_view what);

}  // namespace quire::kernels::cuda
