#pragma once

// Functions for the kernels that process rows. They load and store vectors of elements as float32,
// and add up values over a block.

#include <cstdint>

#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

// kCount adjacent elements, aligned so that a thread moves them in 16-byte accesses, or in one
// access if they have fewer than 16 bytes.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Elements {
  T at[kCount];
};

template <typename T, int kCount>
__device__ __forceinline__ void LoadElements(const T* from, float (&values)[kCount]) {
  const Elements<T, kCount> elements = *reinterpret_cast<const Elements<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = ToFloat(elements.at[i]);
}

template <typename T, int kCount>
__device__ __forceinline__ void StoreElements(T* to, const float (&values)[kCount]) {
  Elements<T, kCount> elements;
#pragma unroll
  for (int i = 0; i < kCount; ++i) elements.at[i] = FromFloat<T>(values[i]);
  *reinterpret_cast<Elements<T, kCount>*>(to) = elements;
}

// Divides a row of `size` elements into vectors of kCount elements. Calls body(i) for each vector
// of this thread, where i is the index of the vector's first element.
template <int kCount, typename Body>
__device__ __forceinline__ void ForEachVector(int64_t size, Body body) {
  const int64_t step = int64_t{blockDim.x} * kCount;
  for (int64_t i = int64_t{threadIdx.x} * kCount; i < size; i += step) body(i);
}

inline constexpr int kMaxRowThreads = 256;  // in a block that processes one row

inline constexpr int kWarpLanes = 32;

// Returns the sum of the values of this lane and all lower ones. All lanes of the warp call this.
__device__ __forceinline__ int64_t WarpPrefixSum(int64_t value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
  for (int delta = 1; delta < kWarpLanes; delta *= 2) {
    const int64_t other = __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(delta));
    if (lane >= delta) value += other;
  }
  return value;
}

// The shared memory for BlockSum: one float for each of up to 32 warps.
inline constexpr int kBlockSumBytes = kWarpLanes * sizeof(float);

// Returns the sum of the values of all threads of the block, with the same bits in every thread.
// The order of the additions depends only on the size of the block. The block must consist of whole
// warps, and all its threads must call this.
__device__ __forceinline__ float BlockSum(float value, float* shared) {
  const unsigned lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, mask);
  }
  if (lane == 0) shared[threadIdx.x / kWarpLanes] = value;
  __syncthreads();
  value = lane < blockDim.x / kWarpLanes ? shared[lane] : 0.0f;
#pragma unroll
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, mask);
  }
  __syncthreads();  // after this barrier, `shared` may be written again
  return value;
}

}  // namespace quire::kernels::cuda
