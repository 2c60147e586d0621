#pragma once

#include "kernels/cuda/device/rows.cuh"
#include "kernels/ops/shift_keys.h"

namespace quire::kernels::cuda {

// The most shifts in one launch. The list of shifts is part of the kernel's parameters, so that it
// needs no device memory.
inline constexpr int kMaxShiftsPerLaunch = 256;

struct ShiftKeysParams {
  void* keys;               // [num_blocks, num_kv_heads, block_size, key_dim]
  const float* rope_table;  // [max_positions, rope_half, 2]
  int64_t block_stride;     // elements
  int64_t num_pairs;        // in a cache block's keys: num_kv_heads * block_size * rope_half
  int key_dim, rope_half;
  float inverse_scale;  // 1 / (the factor in the table's cosines and sines)
  bool interleaved;
  KeyShift shifts[kMaxShiftsPerLaunch];
};

inline constexpr int kShiftThreads = 128;
inline constexpr int kPairsPerShiftThread = 8;

// Grid: [parts of a cache block, shifts]. A thread processes one pair at a time. A pair is two
// elements that rotate together.
template <typename Cache>
__global__ void __launch_bounds__(kShiftThreads)
    ShiftKeysKernel(const __grid_constant__ ShiftKeysParams p) {
  const KeyShift shift = p.shifts[blockIdx.y];
  Cache* const keys = static_cast<Cache*>(p.keys) + shift.block * p.block_stride;
  const float* const angles = p.rope_table + int64_t{shift.distance} * p.rope_half * 2;
  int64_t pair = int64_t{blockIdx.x} * kShiftThreads * kPairsPerShiftThread + threadIdx.x;
#pragma unroll
  for (int n = 0; n < kPairsPerShiftThread; ++n, pair += kShiftThreads) {
    if (pair >= p.num_pairs) break;
    const int i = static_cast<int>(pair % p.rope_half);
    Cache* const key = keys + pair / p.rope_half * p.key_dim;
    Cache* const first = key + (p.interleaved ? 2 * i : i);
    Cache* const second = key + (p.interleaved ? 2 * i + 1 : i + p.rope_half);
    const float cos = angles[2 * i] * p.inverse_scale, sin = angles[2 * i + 1] * p.inverse_scale;
    const float a = ToFloat(*first), b = ToFloat(*second);
    *first = FromFloat<Cache>(fmaf(a, cos, b * sin));
    *second = FromFloat<Cache>(fmaf(b, cos, -(a * sin)));
  }
}

}  // namespace quire::kernels::cuda
