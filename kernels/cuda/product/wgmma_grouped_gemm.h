#pragma once

// The launch of WgmmaGroupedGemmKernel (wgmma_grouped_gemm.cuh). It is compiled for sm_90a alone,
// so it is apart from the other kernels of experts.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/product/grouped_gemm_params.h"

namespace quire::kernels::cuda {

struct WgmmaGemmParams {
  // [num_groups * matrices, cols, depth], with boxes of 64 elements of 64 rows. A group has two
  // matrices if gated, and else one.
  TensorMap weight;
  GroupedGemmParams gemm;
};

// Groups of this many rows on average are multiplied by wgmma. With fewer, the bytes of the weight
// take longer than the products.
inline constexpr int64_t kLeastWgmmaRows = 64;

// Returns true if the kernel can compute these products: `depth` and `cols` are multiples of 8, and
// input, weight and out are at multiples of 16 bytes.
bool SuitsWgmma(const GroupedGemmParams& params);

// Enqueues the products of `num_rows` rows. T is Bf16 or F16.
template <typename T, bool kGated>
absl::Status WgmmaGroupedGemm(Device& device, const GroupedGemmParams& params, int64_t num_rows);

}  // namespace quire::kernels::cuda
