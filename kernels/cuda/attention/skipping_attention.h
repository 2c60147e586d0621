#pragma once

// The instances of SkippingAttnKernel (skipping_attention.cuh).

#include <cstdint>

#include "kernels/cuda/attention/attn_params.h"

namespace quire::kernels::cuda {

template <typename T>
using AttnFunction = void (*)(AttnParams<T>);

// Returns the kernel for a head_dim and a cache of T or, with `fp8`, of E4M3; null if there is
// none. It needs the memory of the kernel that skips nothing. T is Bf16 or F16; both have the same
// instances.
template <typename T>
AttnFunction<T> FindSkippingAttention(int64_t head_dim, bool fp8);

}  // namespace quire::kernels::cuda
