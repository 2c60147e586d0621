#pragma once

#include <limits>

#include "kernels/cuda/device/rows.cuh"

namespace quire::kernels::cuda {

struct ArgmaxParams {
  int32_t* out;         // [rows]
  const float* values;  // [rows, cols]
  int32_t cols;
};

// One value of a row and the index of that value.
struct Candidate {
  float value;
  int32_t index;
};

// Returns the candidate with the larger value. If the values are equal, returns the candidate with
// the lower index.
__device__ __forceinline__ Candidate Better(Candidate a, Candidate b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

__device__ __forceinline__ Candidate BestOfWarp(Candidate best) {
#pragma unroll
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    best = Better(best, {__shfl_xor_sync(0xffffffffu, best.value, mask),
                         __shfl_xor_sync(0xffffffffu, best.index, mask)});
  }
  return best;
}

// The shared memory of a block: one candidate for each of up to 32 warps.
inline constexpr int kArgmaxSharedBytes = kWarpLanes * sizeof(Candidate);

// One block per row.
__global__ void ArgmaxKernel(const __grid_constant__ ArgmaxParams p) {
  Candidate* const shared = DynamicShared<Candidate>();
  const float* const values = p.values + int64_t{blockIdx.x} * p.cols;
  // `nothing` loses to every value except NaN. It loses to -infinity because its index is higher. A
  // row of only NaN gives index 0.
  const Candidate nothing = {-std::numeric_limits<float>::infinity(), p.cols};
  Candidate best = nothing;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.cols;
       i += static_cast<int32_t>(blockDim.x)) {
    best = Better(best, {values[i], i});
  }
  best = BestOfWarp(best);
  const unsigned lane = threadIdx.x % kWarpLanes;
  if (lane == 0) shared[threadIdx.x / kWarpLanes] = best;
  __syncthreads();
  best = BestOfWarp(lane < blockDim.x / kWarpLanes ? shared[lane] : nothing);
  if (threadIdx.x == 0) p.out[blockIdx.x] = best.index == p.cols ? 0 : best.index;
}

}  // namespace quire::kernels::cuda
