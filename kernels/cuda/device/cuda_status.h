#pragma once

// Converts errors of the CUDA runtime to absl::Status.

#include <cuda_runtime_api.h>
#include <string_view>

#include "absl/status/status.h"

namespace quire::kernels::cuda {

// Returns ResourceExhausted when memory is lacking, and Internal for any other error. `what` names
// the failed action.
absl::Status ToStatus(cudaError_t error, std::string_view what);

}  // namespace quire::kernels::cuda
