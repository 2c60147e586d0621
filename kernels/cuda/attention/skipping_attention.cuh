#pragma once

// AttnKernel (paged_attention.cuh), with a cache of T, or Fp8AttnKernel (fp8_attention.cuh), with
// one of E4M3, for models with ALiBi: an item skips the keys beyond its horizon (attn_horizon.cuh),
// and blocks draw ranges of items (attn_ranges.cuh). It is a kernel of its own, because the horizon
// takes registers, of which the loops over tiles of keys leave none.

#include "kernels/cuda/attention/attn_fp8.cuh"
#include "kernels/cuda/attention/paged_attention.cuh"

namespace quire::kernels::cuda {

template <typename T, int kHeadDim, typename Cache>
__global__ void __launch_bounds__(kAttnThreads, 2)
    SkippingAttnKernel(const __grid_constant__ AttnParams<T> p) {
  AttendItems<T, kHeadDim, AttnKeys::kNear, Cache>(p);
}

}  // namespace quire::kernels::cuda
