#pragma once

// Adds up the partial results of each unit of attention work that the plan (attention_plan.h)
// divided into several items, and those that its rows have for shared keys.

#include "kernels/cuda/attention/attention_items.h"
#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

inline constexpr float kLog2E = 1.44269504f;
inline constexpr int kMergeWarps = 4;

template <typename T>
struct AttnMergeParams {
  T* out;                    // [num_tokens, num_heads, head_dim]
  const float* partial_out;  // [rows, head_dim]; each row is divided by its sum of weights
  const float* partial_lse;  // [rows], log-sum-exp in base 2; -INFINITY if a row saw no key
  const AttentionMerge* merges;
  const int32_t* query_starts;
  const float* sinks;  // [num_heads]; null: no sinks
  int num_heads, group, head_dim;
};

// Grid: [merges, rows of the largest merge / kMergeWarps]. One warp merges one row. A lane
// processes four elements at a time.
template <typename T>
__global__ void __launch_bounds__(32 * kMergeWarps)
    AttnMergeKernel(const __grid_constant__ AttnMergeParams<T> p) {
  GridDependencyWait();
  const AttentionMerge merge = p.merges[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.y) * kMergeWarps + static_cast<int>(threadIdx.x) / 32;
  if (row >= merge.num_rows) return;
  const int64_t head = int64_t{merge.kv_head} * p.group + (merge.first_row + row) % p.group;
  const int64_t token = p.query_starts[merge.seq] + (merge.first_row + row) / p.group;
  const int num_pieces = merge.num_items + merge.num_shared_items;
  const auto partial_row = [&](int i) {
    const int shared = i - merge.num_items;
    return row + (shared < 0 ? merge.partial + int64_t{i} * merge.num_rows
                             : merge.shared_partial + int64_t{shared} * merge.shared_rows);
  };

  float maximum = p.sinks != nullptr ? p.sinks[head] * kLog2E : -INFINITY;
  for (int i = 0; i < num_pieces; ++i) maximum = fmaxf(maximum, p.partial_lse[partial_row(i)]);
  if (maximum == -INFINITY) maximum = 0.0f;  // the row saw no key: all weights below are 0
  float sum = p.sinks != nullptr ? Exp2(p.sinks[head] * kLog2E - maximum) : 0.0f;
  for (int i = 0; i < num_pieces; ++i) sum += Exp2(p.partial_lse[partial_row(i)] - maximum);
  const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;

  for (int d = lane * 4; d < p.head_dim; d += 128) {
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int i = 0; i < num_pieces; ++i) {
      const int64_t from = partial_row(i);
      const float weight = Exp2(p.partial_lse[from] - maximum) * inverse;
      const auto x = *reinterpret_cast<const float4*>(p.partial_out + from * p.head_dim + d);
      o.x += weight * x.x;
      o.y += weight * x.y;
      o.z += weight * x.z;
      o.w += weight * x.w;
    }
    StoreVector(p.out + (token * p.num_heads + head) * p.head_dim + d,
                make_uint2(Pack2<T>(o.x, o.y), Pack2<T>(o.z, o.w)));
  }
}

}  // namespace quire::kernels::cuda
