#pragma once

#include "kernels/cuda/device/rows.cuh"
#include "kernels/ops/attention_pattern.h"

namespace quire::kernels::cuda {

struct AttentionReferenceParams {
  void* out;          // [tokens, num_heads, value_dim]
  const void* query;  // [tokens, num_heads, key_dim]
  const void* keys;   // [num_blocks, num_kv_heads, block_size, key_dim]
  const void* values;
  const int32_t* block_table;   // [num_seqs, max_blocks]
  const int32_t* context_lens;  // [num_seqs]
  const int32_t* query_starts;  // [num_seqs + 1]
  const float* slopes;          // [num_heads]; null: no ALiBi
  const float* sinks;           // [num_heads]; null: no sinks
  int64_t num_tokens, max_blocks;
  int64_t block_stride;  // elements
  int num_seqs, num_heads, num_kv_heads, key_dim, value_dim, block_size;
  float scale, soft_cap;
  float k_scale, v_scale;  // of the cache
  AttentionPattern pattern;
  bool alibi_is_rounded;
};

__device__ inline float RoundedToBf16(float value) { return ToFloat(FromFloat<Bf16>(value)); }

inline constexpr int kReferenceWarps = 4;
inline constexpr int kReferenceThreads = kReferenceWarps * kWarpLanes;
inline constexpr int kMaxHeadDim = 256;
// The shared memory of a block: one query in float32 for each warp.
inline constexpr int kReferenceSharedBytes = kReferenceWarps * kMaxHeadDim * sizeof(float);

// One warp processes one (token, head). It reads the keys in tiles of 32. Tiles start at positions
// that are multiples of 32, so they do not depend on the chunk or the batch. In each tile, a lane
// first computes the score of one key. Then the lane adds the weighted values of all keys of the
// tile to its own dimensions of the output.
template <typename T, typename Cache>
__global__ void __launch_bounds__(kReferenceThreads)
    AttentionReferenceKernel(const __grid_constant__ AttentionReferenceParams p) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kVector = std::min<int>(8, 16 / sizeof(Cache));  // keys have multiples of 8
  constexpr int kDimsPerLane = kMaxHeadDim / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
  const int warp = static_cast<int>(threadIdx.x / kWarpLanes);
  const int64_t item = int64_t{blockIdx.x} * kReferenceWarps + warp;
  if (item >= p.num_tokens * p.num_heads) return;
  const int64_t token = item / p.num_heads;
  const int head = static_cast<int>(item % p.num_heads);

  // Finds the last sequence that starts at or before this token. If several sequences start at the
  // same token, all but the last of them are empty.
  int seq = 0;
  for (int end = p.num_seqs; end - seq > 1;) {
    const int middle = (seq + end) / 2;
    (p.query_starts[middle] <= token ? seq : end) = middle;
  }
  const int64_t start = p.query_starts[seq], query_end = p.query_starts[seq + 1];
  if (token < start || token >= query_end) return;
  const int64_t position = p.context_lens[seq] - (query_end - token);
  const int64_t first_key = p.pattern.FirstKey(position);
  const int32_t* const table = p.block_table + seq * p.max_blocks;

  float* const query = DynamicShared<float>() + warp * kMaxHeadDim;
  for (int d = lane; d < p.key_dim; d += kWarpLanes) {
    query[d] = ToFloat(static_cast<const T*>(p.query)[item * p.key_dim + d]);
  }
  __syncwarp();

  const int64_t first_row = head / (p.num_heads / p.num_kv_heads) * int64_t{p.block_size};
  // Returns the address of the row of a key in `part`, the keys or the values of the cache.
  const auto row_of = [&](const void* part, int64_t key, int dim) {
    const int64_t block = table[key / p.block_size];
    return static_cast<const Cache*>(part) + block * p.block_stride +
           (first_row + key % p.block_size) * dim;
  };

  // Online softmax (arXiv:1805.02867). `sum` adds up the weights e^(score - maximum). `out` adds up
  // the values, each times its weight.
  float maximum = p.sinks == nullptr ? -INFINITY : p.sinks[head];
  float sum = p.sinks == nullptr ? 0.0f : 1.0f;
  float out[kDimsPerLane] = {};
  for (int64_t tile = first_key / kWarpLanes * kWarpLanes; tile <= position; tile += kWarpLanes) {
    // A block of keys has a multiple of 32 keys, so the tile is in one block.
    if (p.pattern.has_holes() && !p.pattern.SeesBlock(position, tile, head)) continue;
    const int64_t key = tile + lane;
    float score = -INFINITY;
    if (key >= first_key && key <= position) {
      const Cache* const row = row_of(p.keys, key, p.key_dim);
      float dot = 0.0f;
      for (int d = 0; d < p.key_dim; d += kVector) {
        float k[kVector];
        LoadElements(row + d, k);
#pragma unroll
        for (int i = 0; i < kVector; ++i) dot += query[d + i] * k[i];
      }
      score = dot * (p.scale * p.k_scale);
      if (p.soft_cap > 0.0f) score = p.soft_cap * tanhf(score / p.soft_cap);
      if (p.slopes != nullptr && p.alibi_is_rounded) {
        const float rounded_key = RoundedToBf16(static_cast<float>(key));
        score += p.scale * RoundedToBf16(p.slopes[head] * rounded_key);
      } else if (p.slopes != nullptr) {
        score += p.slopes[head] * static_cast<float>(key - position);
      }
    }
    float tile_maximum = score;
#pragma unroll
    for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
      tile_maximum = fmaxf(tile_maximum, __shfl_xor_sync(kAll, tile_maximum, mask));
    }
    const float new_maximum = fmaxf(maximum, tile_maximum);
    const float kept = expf(maximum - new_maximum);
    const float weight = expf(score - new_maximum);
    maximum = new_maximum;
    float tile_sum = weight;
#pragma unroll
    for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
      tile_sum += __shfl_xor_sync(kAll, tile_sum, mask);
    }
    sum = sum * kept + tile_sum;
#pragma unroll
    for (int i = 0; i < kDimsPerLane; ++i) out[i] *= kept;
    const int end = static_cast<int>(std::min<int64_t>(kWarpLanes, position + 1 - tile));
    for (int j = static_cast<int>(std::max<int64_t>(0, first_key - tile)); j < end; ++j) {
      const float key_weight = __shfl_sync(kAll, weight, j);
      const Cache* const value = row_of(p.values, tile + j, p.value_dim);
#pragma unroll
      for (int i = 0; i < kDimsPerLane; ++i) {
        const int d = lane + i * kWarpLanes;
        if (d < p.value_dim) out[i] += key_weight * ToFloat(value[d]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kDimsPerLane; ++i) {
    const int d = lane + i * kWarpLanes;
    if (d < p.value_dim) {
      static_cast<T*>(p.out)[item * p.value_dim + d] = FromFloat<T>(out[i] * p.v_scale / sum);
    }
  }
}

}  // namespace quire::kernels::cuda
