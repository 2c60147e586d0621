#pragma once

#include "absl/status/status.h"

#include "kernels/cuda/device.h"
#include "kernels/ops/moe.h"

namespace quire::kernels::cuda {

// A mixture of experts, under the rules of ops.h. Only the device knows which experts, rows and
// tiles there are, so that a graph can record it. The products are our own (grouped_gemm.cuh); the
// device's GEMM computes the router's logits.
//
// Routing and products are stored in `scratch`, device memory for at least one token. As many
// tokens as fit are processed at once. The weights are CudaWeights of the input's dtype.
absl::Status Moe(Device& device, const MoeArgs& args, const DeviceBuffer& scratch);

}  // namespace quire::kernels::cuda
