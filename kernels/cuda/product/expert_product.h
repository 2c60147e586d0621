#pragma once

// The products of grouped rows and the matrices of experts, in whatever form these are stored.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/matrix_instruction.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/grouped_gemm_params.h"
#include "kernels/cuda/product/weight_product.h"

namespace quire::kernels::cuda {

// Enqueues the products of `num_rows` rows, gated or not. The weight decides `params.weight` and
// the dtype, and `params.out_cols` is that of `params.cols`, so these are not read. A weight has
// one part. If it is packed, `params.cols` is a multiple of 32, or of 16 if gated, and the input
// and `scratch` are at multiples of 16 bytes.
//
// Packed matrices are read again for every 16 rows of a group (packed_grouped_gemm.cuh), or they
// are expanded: written to `scratch` in 16 bits, as many columns or experts at a time as fit, and
// multiplied there, which gives the bits of an expanded weight. The way that moves fewer bytes is
// taken, if the groups had equally many rows. If `scratch` is too small for 16 columns of an
// expert, or `scratch.rows` is GemmRows::kFixed, matrices are not expanded: a row then has the same
// bits beside any others.
//
// With kWgmma, matrices in 16 bits and expanded ones are multiplied by wgmma where groups have
// kLeastWgmmaRows (wgmma_grouped_gemm.h) on average. Not with GemmRows::kFixed.
absl::Status ExpertProduct(Device& device, const CudaWeight& weight, GroupedGemmParams params,
                           int64_t num_rows, bool gated, const ProductScratch& scratch,
                           MatrixInstruction instruction = MatrixInstruction::kMma);

}  // namespace quire::kernels::cuda
