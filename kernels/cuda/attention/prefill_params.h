#pragma once

// The parameters of PrefillAttnKernel (prefill_attention.cuh).

#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/device/tensor_map.h"

namespace quire::kernels::cuda {

inline constexpr int kPrefillThreads = 384;  // two warpgroups that multiply, then one that fetches

template <typename T>
struct PrefillParams {
  // [num_blocks, num_kv_heads * block_size, head_dim], with boxes of 64 elements of PrefillBoxKeys
  // keys (prefill_fetch.cuh).
  TensorMap keys, values;
  AttnParams<T> attn;
};

}  // namespace quire::kernels::cuda
