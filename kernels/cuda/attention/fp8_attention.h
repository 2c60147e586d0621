#pragma once

// The instances of Fp8AttnKernel (fp8_attention.cuh).

#include <cstdint>

#include "kernels/cuda/attention/attn_params.h"

namespace quire::kernels::cuda {

template <typename T>
struct Fp8AttnInstance {
  int64_t head_dim;
  int64_t shared_bytes;
  int64_t wide_shared_bytes;  // with items of more than kMostItemRows rows
  void (*kernel)(AttnParams<T>);
  float factor;  // the kernel's scores and output are to be multiplied by it (attn_fp8.cuh)
};

// Returns the instance for a head_dim, or null if there is none. T is Bf16 or F16; both have the
// same instances.
template <typename T>
const Fp8AttnInstance<T>* FindFp8Attention(int64_t head_dim);

}  // namespace quire::kernels::cuda
