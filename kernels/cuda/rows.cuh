#pragma once

// Shared by the kernels that process rows: vectors of elements as float32, and sums over a block.

#include <cstdint>

#include "kernels/cuda/primitives.cuh"

namespace quire::kernels::cuda {

// kCount neighbours, moved in accesses of 16 bytes, or in one access if they are fewer bytes.
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

// Calls body(i) for each vector of kCount elements of a row that is this thread's; i is its first.
template <int kCount, typename Body>
__device__ __forceinline__ void ForEachVector(int64_t size, Body body) {
  const int64_t step = int64_t{blockDim.x} * kCount;
  for (int64_t i = int64_t{threadIdx.x} * kCount; i < size; i += step) body(i);
}

inline constexpr int kMaxRowThreads = 256;  // of a block, which processes one row

inline constexpr int kWarpLanes = 32;
// Shared memory for BlockSum: one float per warp.
inline constexpr int kBlockSumBytes = kWarpLanes * sizeof(float);

// The sum of all threads' values, with the same bits in every thread, in an order that the size of
// the block fixes. Whole warps only; all threads call this.
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
  __syncthreads();  // `shared` may be written again
  return value;
}

}  // namespace quire::kernels::cuda
