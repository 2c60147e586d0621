#pragma once

#include "absl/status/status.h"

#include "kernels/cuda/device.h"
#include "kernels/ops/moe.h"

namespace quire::kernels::cuda {

// A mixture of experts, as the ops of ops.h are: which experts, which rows and which tiles is known
// to the device alone, so that a graph can record it. The products are our own (grouped_gemm.cuh),
// the router's logits the device's GEMM.
//
// Routing and products lie in `scratch`, device memory of at least one token's: tokens are taken as
// many at once as fit. The weights are CudaWeights of the input's dtype.
absl::Status Moe(Device& device, const MoeArgs& args, const DeviceBuffer& scratch);

}  // namespace quire::kernels::cuda
