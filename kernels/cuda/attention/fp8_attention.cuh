#pragma once

// Paged attention over a cache of E4M3 with mma.sync, for queries in Bf16 or F16. The kernel is
// AttnKernel (paged_attention.cuh) with the products of attn_fp8.cuh. Its tiles have as many keys
// and half the bytes. Wide items are widened first (attn_wide.cuh), for which they need more
// memory.

#include "kernels/cuda/attention/attn_fp8.cuh"
#include "kernels/cuda/attention/paged_attention.cuh"

namespace quire::kernels::cuda {

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kAttnThreads, 2)
    Fp8AttnKernel(const __grid_constant__ AttnParams<T> p) {
  AttendItems<T, kHeadDim, AttnKeys::kAll, E4M3>(p);
}

}  // namespace quire::kernels::cuda
