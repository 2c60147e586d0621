#pragma once

// Defines CUDA's keywords, built-in variables, vector types and warp built-ins for a C++ compiler.
// nvcc knows them without a header. Kernels use them here as they do under nvcc.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/emulator/runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

extern constinit thread_local quire::kernels::cuda::emulator::Index3 threadIdx;
extern constinit thread_local quire::kernels::cuda::emulator::Index3 blockIdx;
extern constinit thread_local quire::kernels::cuda::emulator::Index3 blockDim;
extern constinit thread_local quire::kernels::cuda::emulator::Index3 gridDim;

inline void __syncthreads(quire::kernels::cuda::emulator::Where where = {}) {
  quire::kernels::cuda::emulator::SyncThreads(where);
}

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       quire::kernels::cuda::emulator::Where where = {}) {
  quire::kernels::cuda::emulator::SyncWarp(mask, where);
}

inline unsigned __ballot_sync(unsigned mask, bool predicate,
                              quire::kernels::cuda::emulator::Where where = {}) {
  return quire::kernels::cuda::emulator::Ballot(mask, predicate, where);
}

inline bool __any_sync(unsigned mask, bool predicate,
                       quire::kernels::cuda::emulator::Where where = {}) {
  return quire::kernels::cuda::emulator::Ballot(mask, predicate, where) != 0;
}

inline bool __all_sync(unsigned mask, bool predicate,
                       quire::kernels::cuda::emulator::Where where = {}) {
  return quire::kernels::cuda::emulator::Ballot(mask, predicate, where) == mask;
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source_lane,
              quire::kernels::cuda::emulator::Where where = {}) {
  return quire::kernels::cuda::emulator::Shuffle(
      mask, value, quire::kernels::cuda::emulator::ShuffleKind::kIndex, source_lane, where);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask,
                  quire::kernels::cuda::emulator::Where where = {}) {
  return quire::kernels::cuda::emulator::Shuffle(
      mask, value, quire::kernels::cuda::emulator::ShuffleKind::kXor, lane_mask, where);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta,
                 quire::kernels::cuda::emulator::Where where = {}) {
  return quire::kernels::cuda::emulator::Shuffle(mask, value,
                                                 quire::kernels::cuda::emulator::ShuffleKind::kUp,
                                                 static_cast<int>(delta), where);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta,
                   quire::kernels::cuda::emulator::Where where = {}) {
  return quire::kernels::cuda::emulator::Shuffle(mask, value,
                                                 quire::kernels::cuda::emulator::ShuffleKind::kDown,
                                                 static_cast<int>(delta), where);
}
