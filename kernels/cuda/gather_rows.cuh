#pragma once

#include "kernels/cuda/device/rows.cuh"

namespace quire::kernels::cuda {

struct GatherRowsParams {
  void* out;            // [num_rows, size]; size is in units of kCount 16-bit words
  const void* input;    // [num_inputs, size]
  const int32_t* rows;  // [num_rows]
  int64_t num_inputs, size;
};

// One block copies one row, in units of kCount 16-bit words.
template <int kCount>
__global__ void GatherRowsKernel(const __grid_constant__ GatherRowsParams p) {
  using Unit = Elements<uint16_t, kCount>;
  const int64_t row = p.rows[blockIdx.x];
  const bool known = row >= 0 && row < p.num_inputs;
  const Unit* const input = static_cast<const Unit*>(p.input) + (known ? row : 0) * p.size;
  Unit* const out = static_cast<Unit*>(p.out) + int64_t{blockIdx.x} * p.size;
  Unit unknown;
#pragma unroll
  for (int i = 0; i < kCount; ++i) unknown.at[i] = 0xffff;  // NaN in every dtype
  ForEachVector<1>(p.size, [&](int64_t i) { out[i] = known ? input[i] : unknown; });
}

}  // namespace quire::kernels::cuda
