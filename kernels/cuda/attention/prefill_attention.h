#pragma once

// The instances of PrefillAttnKernel and Fp8PrefillAttnKernel (prefill_attention.cuh). They are
// compiled for sm_90a alone, so they are apart from the other kernels of attention.

#include <cstdint>

#include "kernels/cuda/attention/prefill_params.h"

namespace quire::kernels::cuda {

template <typename T>
struct PrefillInstance {
  int64_t head_dim;
  bool fp8;  // the cache's elements are E4M3, and the parameters need no maps
  int64_t tile_keys, shared_bytes;
  void (*kernel)(PrefillParams<T>);
};

// Returns the instance for a head_dim and a cache, or null if there is none. T is Bf16 or F16; both
// have the same head_dims.
template <typename T>
const PrefillInstance<T>* FindPrefill(int64_t head_dim, bool fp8);

}  // namespace quire::kernels::cuda
