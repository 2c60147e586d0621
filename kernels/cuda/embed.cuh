#pragma once

#include <limits>

#include "kernels/cuda/rows.cuh"

namespace quire::kernels::cuda {

struct EmbedParams {
  void* out;                 // [tokens, cols]
  const int32_t* token_ids;  // [tokens]
  const void* table;         // [rows, cols]
  int64_t rows, cols;
  float scale;
};

// One block per token.
template <typename Table, typename T, int kCount>
__global__ void EmbedKernel(const __grid_constant__ EmbedParams p) {
  const int64_t id = p.token_ids[blockIdx.x];
  const bool known = id >= 0 && id < p.rows;
  const Table* const row = static_cast<const Table*>(p.table) + (known ? id : 0) * p.cols;
  T* const out = static_cast<T*>(p.out) + int64_t{blockIdx.x} * p.cols;
  const float scale = known ? p.scale : std::numeric_limits<float>::quiet_NaN();
  ForEachVector<kCount>(p.cols, [&](int64_t i) {
    float values[kCount];
    LoadElements(row + i, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] *= scale;
    StoreElements(out + i, values);
  });
}

}  // namespace quire::kernels::cuda
