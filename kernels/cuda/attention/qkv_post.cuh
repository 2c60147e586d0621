#pragma once

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/norm.cuh"

namespace quire::kernels::cuda {

struct QkvPostParams {
  void* query;                  // [tokens, num_heads, key_dim]
  void* keys;                   // [num_blocks, num_kv_heads, block_size, key_dim]
  void* values;                 // [num_blocks, num_kv_heads, block_size, value_dim]
  const void* qkv;              // [tokens, row_elements]: Q, K, V
  const int32_t* positions;     // [tokens]
  const int64_t* slot_mapping;  // [tokens]
  const float* rope_table;      // [num_positions, rope_half, 2]
  const float* query_scales;    // [num_positions]; null: all are 1
  const float* bias;            // as long as a row of qkv; null: no bias
  const float* query_norm;      // weights of one head or of all heads; null: no QK-norm
  const float* key_norm;
  float* largest_keys;  // [num_kv_heads], CacheView::key_norms; null: not kept
  int64_t num_slots, num_positions;
  int64_t block_stride;  // elements
  int num_heads, num_kv_heads, key_dim, value_dim, block_size;
  int rope_half;          // rope_dim / 2; 0: no rotation
  int heads_per_section;  // 0: a section is all heads of Q, of K, or of V
  float clip;             // 0: no clipping
  float norm_eps;
  float value_scale;
  float k_scale, v_scale;  // of the cache
  bool interleaved, layer_norm, norm_by_head;
};

// Raises largest_keys to the norms of the keys that the block has written, of the KV heads [first,
// end). One warp computes a norm, of the elements as they are stored. Norms are not negative, so
// their bits are in the order of integers, and the result does not depend on the order of blocks. A
// NaN would lose against numbers if its sign were set, so it becomes infinity.
template <typename Cache>
__device__ __forceinline__ void RaiseLargestKeys(const QkvPostParams& p, int64_t slot, int first,
                                                 int end) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
  const Cache* const block =
      static_cast<const Cache*>(p.keys) + slot / p.block_size * p.block_stride;
  for (int head = first + static_cast<int>(threadIdx.x) / kWarpLanes; head < end; head += warps) {
    const Cache* const key =
        block + (int64_t{head} * p.block_size + slot % p.block_size) * p.key_dim;
    float sum = 0.0f;
    for (int i = lane; i < p.key_dim; i += kWarpLanes) {
      const float x = ToFloat(key[i]);
      sum = fmaf(x, x, sum);
    }
#pragma unroll
    for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    }
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float norm = sum < kInfinity ? sqrtf(sum) : kInfinity;
    if (lane == 0) {
      AtomicMax(reinterpret_cast<int32_t*>(p.largest_keys + head), std::bit_cast<int32_t>(norm));
    }
  }
}

// Grid: [tokens, sections]. A section is a range of heads. With QK-norm over single heads, a
// section is one head. With QK-norm over all heads together, the sections are Q, K and V. A thread
// processes one pair of elements at a time. In the first rope_dim elements of a head, a pair is two
// elements that rotate together. In the rest of the head, a pair is two neighbours. If keys and
// values differ in length, the pairs beyond the end of the shorter heads are skipped.
template <typename T, typename Cache>
__global__ void __launch_bounds__(kMaxRowThreads)
    QkvPostKernel(const __grid_constant__ QkvPostParams p) {
  const int64_t token = blockIdx.x;
  const int num_rotated = p.num_heads + p.num_kv_heads, total_heads = num_rotated + p.num_kv_heads;
  int first_head, end_head;
  if (p.heads_per_section > 0) {
    first_head = static_cast<int>(blockIdx.y) * p.heads_per_section;
    end_head = std::min(first_head + p.heads_per_section, total_heads);
  } else {
    first_head = blockIdx.y == 0 ? 0 : blockIdx.y == 1 ? p.num_heads : num_rotated;
    end_head = blockIdx.y == 0 ? p.num_heads : blockIdx.y == 1 ? num_rotated : total_heads;
  }

  const int64_t first_value = int64_t{num_rotated} * p.key_dim;
  const int64_t row_elements = first_value + int64_t{p.num_kv_heads} * p.value_dim;
  const T* const in = static_cast<const T*>(p.qkv) + token * row_elements;
  const auto biased = [&](int64_t at) {
    float x = ToFloat(in[at]);
    if (p.bias != nullptr) x += p.bias[at];
    // A NaN fails both comparisons and stays.
    if (p.clip > 0.0f) x = x > p.clip ? p.clip : x < -p.clip ? -p.clip : x;
    return x;
  };
  const float* const weight = first_head < p.num_heads   ? p.query_norm
                              : first_head < num_rotated ? p.key_norm
                                                         : nullptr;
  const int64_t first_element = int64_t{first_head} * p.key_dim;  // of a section with a norm
  NormScale scale = {};
  if (weight != nullptr) {
    scale = ScaleOf<1>(int64_t{end_head - first_head} * p.key_dim, p.layer_norm, p.norm_eps,
                       DynamicShared<float>(),
                       [&](int64_t i, float(&x)[1]) { x[0] = biased(first_element + i); });
  }
  const auto value = [&](int head, int i) {
    const float x =
        biased(head < num_rotated ? int64_t{head} * p.key_dim + i
                                  : first_value + int64_t{head - num_rotated} * p.value_dim + i);
    if (weight == nullptr) return x;
    const int at = p.norm_by_head ? i : (head - first_head) * p.key_dim + i;
    return (x - scale.mean) * scale.inverse * weight[at];
  };

  const int64_t position = p.num_positions > 0 ? p.positions[token] : 0;
  float query_scale = 1.0f;
  if (p.query_scales != nullptr) {
    query_scale = position >= 0 && position < p.num_positions
                      ? p.query_scales[position]
                      : std::numeric_limits<float>::quiet_NaN();
  }
  const int64_t slot = p.slot_mapping[token];
  const int pairs_per_head = std::max(p.key_dim, p.value_dim) / 2;
  const int num_pairs = (end_head - first_head) * pairs_per_head;
  for (int pair = static_cast<int>(threadIdx.x); pair < num_pairs;
       pair += static_cast<int>(blockDim.x)) {
    const int head = first_head + pair / pairs_per_head, i = pair % pairs_per_head;
    const bool is_value = head >= num_rotated;
    const int dim = is_value ? p.value_dim : p.key_dim;
    if (2 * i >= dim) continue;
    const bool rotates = i < p.rope_half && !is_value;
    const bool halves = i < p.rope_half && !p.interleaved && 2 * p.rope_half <= dim;
    const int first = halves ? i : 2 * i;
    const int second = halves ? i + p.rope_half : 2 * i + 1;
    const float a = value(head, first), b = value(head, second);
    float x = a, y = b;
    if (rotates) {
      float cos = std::numeric_limits<float>::quiet_NaN(), sin = cos;
      if (position >= 0 && position < p.num_positions) {
        const float* const angle = p.rope_table + (position * p.rope_half + i) * 2;
        cos = angle[0];
        sin = angle[1];
      }
      x = fmaf(a, cos, -(b * sin));
      y = fmaf(a, sin, b * cos);
    }

    if (head < p.num_heads) {
      T* const out = static_cast<T*>(p.query) + (token * p.num_heads + head) * p.key_dim;
      out[first] = FromFloat<T>(query_scale * x);
      out[second] = FromFloat<T>(query_scale * y);
      continue;
    }
    if (slot < 0 || slot >= p.num_slots) continue;
    const int64_t kv_head = head - (is_value ? num_rotated : p.num_heads);
    const int64_t row = kv_head * p.block_size + slot % p.block_size;
    Cache* const out = static_cast<Cache*>(is_value ? p.values : p.keys) +
                       slot / p.block_size * p.block_stride + row * dim;
    const float factor = is_value ? p.value_scale : 1.0f;
    x *= factor;
    y *= factor;
    if constexpr (std::is_same_v<Cache, E4M3>) {
      const float cache_scale = is_value ? p.v_scale : p.k_scale;
      x = DividedForE4M3(x, cache_scale);
      y = DividedForE4M3(y, cache_scale);
    }
    out[first] = FromFloat<Cache>(x);
    out[second] = FromFloat<Cache>(y);
  }
  if (p.largest_keys == nullptr || slot < 0 || slot >= p.num_slots) return;
  __syncthreads();  // after this barrier, every thread sees the keys that the block has written
  RaiseLargestKeys<Cache>(p, slot, std::max(first_head, p.num_heads) - p.num_heads,
                          std::min(end_head, num_rotated) - p.num_heads);
}

}  // namespace quire::kernels::cuda
