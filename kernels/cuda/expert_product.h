#pragma once

// The products of grouped rows and the matrices of experts, in whatever form these are stored.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/cuda_weight.h"
#include "kernels/cuda/device.h"

namespace quire::kernels::cuda {

struct GroupedGemmParams;

// Enqueues the products of `num_rows` rows, gated or not. The weight decides `params.weight` and
// the dtype, and `params.out_cols` is that of `params.cols`, so these are not read. A weight has
// one part. If it is packed, `params.cols` is a multiple of 32, and the input is at a multiple
// of 16 bytes.
//
// Packed matrices are read again for every 16 rows of a group (packed_grouped_gemm.cuh).
absl::Status ExpertProduct(Device& device, const CudaWeight& weight, GroupedGemmParams params,
                           int64_t num_rows, bool gated);

}  // namespace quire::kernels::cuda
