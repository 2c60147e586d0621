#pragma once

#include "kernels/cuda/device/primitives.cuh"

namespace quire::bench {

using kernels::cuda::Bf16;
using kernels::cuda::E4M3;
using kernels::cuda::FromFloat;
using kernels::cuda::LoadReadOnly;

inline constexpr int kStreamThreads = 256;
// The most blocks of a grid per multiprocessor. They all run concurrently if a thread uses at most
// 65536 / (4 * 256) = 64 registers, so there is no second wave of blocks.
inline constexpr int kStreamBlocksPerSm = 4;

template <typename T>
struct FillParams {
  T* data;
  int64_t count;
  float amplitude;
  uint32_t seed;
};

__device__ __forceinline__ float AsElement(float value, float*) { return value; }
__device__ __forceinline__ Bf16 AsElement(float value, Bf16*) { return FromFloat<Bf16>(value); }
__device__ __forceinline__ E4M3 AsElement(float value, E4M3*) { return FromFloat<E4M3>(value); }

template <typename T>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocksPerSm)
    FillRandomKernel(const __grid_constant__ FillParams<T> p) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    // The finaliser of MurmurHash3.
    uint32_t bits = static_cast<uint32_t>(i) ^ (static_cast<uint32_t>(i >> 32) * 0x9e3779b9u) ^
                    (p.seed * 0x85ebca6bu);
    bits = (bits ^ (bits >> 16)) * 0x85ebca6bu;
    bits = (bits ^ (bits >> 13)) * 0xc2b2ae35u;
    bits ^= bits >> 16;
    const float unit = static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f;
    p.data[i] = AsElement(p.amplitude * unit, p.data);
  }
}

struct ReadParams {
  const uint4* data;
  int64_t count;
  uint32_t* sink;
};

// The number of 16-byte reads that a thread has in flight. Together, the threads of a
// multiprocessor have 128 KiB in flight.
inline constexpr int kReadsInFlight = 8;

__global__ void __launch_bounds__(kStreamThreads, kStreamBlocksPerSm)
    ReadAllKernel(const __grid_constant__ ReadParams p) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count;
       i += kReadsInFlight * step) {
    uint4 words[kReadsInFlight] = {};
#pragma unroll
    for (int k = 0; k < kReadsInFlight; ++k) {
      if (i + k * step < p.count) words[k] = LoadReadOnly<uint4>(p.data + i + k * step);
    }
#pragma unroll
    for (int k = 0; k < kReadsInFlight; ++k) {
      sum |= words[k].x | words[k].y | words[k].z | words[k].w;
    }
  }
  // The compiler must keep the reads, because it cannot know that this condition is almost never
  // true.
  if (sum == 0x12345678u) *p.sink = sum;
}

}  // namespace quire::bench
