#pragma once

#include "kernels/cuda/device/rows.cuh"

namespace quire::kernels::cuda {

struct TakeTokensParams {
  int32_t* token_ids;      // [num_tokens]
  const int32_t* drawn;    // [num_drawn]
  const int32_t* sources;  // [num_tokens]
  int64_t num_tokens, num_drawn;
};

inline constexpr int kTakeTokensThreads = 128;

// Each thread handles one token. A source of -1 leaves the id of the token unchanged. Any other
// source out of range sets the id to -1, which Embed turns into NaN.
__global__ void __launch_bounds__(kTakeTokensThreads)
    TakeTokensKernel(const __grid_constant__ TakeTokensParams p) {
  const int64_t i = int64_t{blockIdx.x} * kTakeTokensThreads + threadIdx.x;
  if (i >= p.num_tokens || p.sources[i] == -1) return;
  const int64_t source = p.sources[i];
  p.token_ids[i] = source >= 0 && source < p.num_drawn ? p.drawn[source] : -1;
}

}  // namespace quire::kernels::cuda
