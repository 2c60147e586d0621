#pragma once

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/matrix_instruction.h"
#include "kernels/cuda/product/fixed_rows_gemm.h"
#include "kernels/ops/moe.h"

namespace quire::kernels::cuda {

// Computes a mixture of experts, under the rules of ops.h. The launches do not depend on the
// choices of the router, so a graph can record the op. Kernels of this project (expert_product.h)
// compute the products of the experts. The router is a weight as any other (weight_product.h).
//
// `scratch` is device memory for the routing and the products of at least one token. As many tokens
// as fit there are processed at once. The weights are CudaWeights with the dtype of the input.
// `gemm_rows` is about the logits of the router, and about packed experts, which are expanded for
// many rows only with GemmRows::kAny. A row of other products does not depend on the number of
// rows. `experts` multiplies 16-bit and expanded experts of many rows; with GemmRows::kFixed it is
// kMma.
absl::Status Moe(Device& device, const MoeArgs& args, const DeviceBuffer& scratch,
                 GemmRows gemm_rows = GemmRows::kAny,
                 MatrixInstruction experts = MatrixInstruction::kMma);
// Returns the bytes of scratch memory from which on Moe processes as many tokens at once as it can.
int64_t MoeScratchBytes(const MoeArgs& args, GemmRows gemm_rows);

}  // namespace quire::kernels::cuda
