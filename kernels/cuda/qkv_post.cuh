#pragma once

#include <limits>

#include "kernels/cuda/rows.cuh"

namespace quire::kernels::cuda {

struct QkvPostParams {
  void* query;                  // [tokens, num_heads, head_dim]
  void* kv_cache;               // [num_blocks, 2, num_kv_heads, block_size, head_dim]
  const void* qkv;              // [tokens, (num_heads + 2 * num_kv_heads) * head_dim]
  const int32_t* positions;     // [tokens]
  const int64_t* slot_mapping;  // [tokens]
  const float* rope_table;      // [max_positions, rope_half, 2]
  int64_t num_slots, max_positions;
  int64_t block_stride;  // elements
  int num_heads, num_kv_heads, head_dim, block_size;
  int rope_half;  // rope_dim / 2; 0: no rotation
  bool interleaved;
};

inline constexpr int kQkvPostThreads = 128;

// Grid [tokens, pairs of elements of a token / kQkvPostThreads], one pair a thread: the two that
// rotate together, and past rope_dim two neighbours.
template <typename T, typename Cache>
__global__ void __launch_bounds__(kQkvPostThreads)
    QkvPostKernel(const __grid_constant__ QkvPostParams p) {
  const int64_t token = blockIdx.x;
  const int pairs_per_head = p.head_dim / 2;
  const int pair = static_cast<int>(blockIdx.y * kQkvPostThreads + threadIdx.x);
  const int head = pair / pairs_per_head, i = pair % pairs_per_head;
  const int total_heads = p.num_heads + 2 * p.num_kv_heads;
  if (head >= total_heads) return;

  const bool rotates = i < p.rope_half && head < p.num_heads + p.num_kv_heads;
  const bool halves = i < p.rope_half && !p.interleaved;
  const int first = halves ? i : 2 * i;
  const int second = halves ? i + p.rope_half : 2 * i + 1;
  const T* const in = static_cast<const T*>(p.qkv) + (token * total_heads + head) * p.head_dim;
  const float a = ToFloat(in[first]), b = ToFloat(in[second]);
  float x = a, y = b;
  if (rotates) {
    const int64_t position = p.positions[token];
    float cos = std::numeric_limits<float>::quiet_NaN(), sin = cos;
    if (position >= 0 && position < p.max_positions) {
      const float* const angle = p.rope_table + (position * p.rope_half + i) * 2;
      cos = angle[0];
      sin = angle[1];
    }
    x = fmaf(a, cos, -(b * sin));
    y = fmaf(a, sin, b * cos);
  }

  if (head < p.num_heads) {
    T* const out = static_cast<T*>(p.query) + (token * p.num_heads + head) * p.head_dim;
    out[first] = FromFloat<T>(x);
    out[second] = FromFloat<T>(y);
    return;
  }
  const int64_t slot = p.slot_mapping[token];
  if (slot < 0 || slot >= p.num_slots) return;
  // K's heads, then V's, as in the row.
  const int64_t row = (head - p.num_heads) * int64_t{p.block_size} + slot % p.block_size;
  Cache* const out =
      static_cast<Cache*>(p.kv_cache) + slot / p.block_size * p.block_stride + row * p.head_dim;
  out[first] = FromFloat<Cache>(x);
  out[second] = FromFloat<Cache>(y);
}

}  // namespace quire::kernels::cuda
