#pragma once

// Under ALiBi (arXiv:2108.12409), distant keys weigh little. The horizon of a row is a distance.
// All keys at this distance or beyond together provably weigh at most 2^-24 of the row's sum of
// weights.
//
// A row has the query q, the position p and the slope m > 0. The score of key k_j is
// c * q.k_j - m * (p - j), where c is the op's scale. Let K be at least the norm of every key of
// the KV head in the cache (CacheView::key_norms), and B = |c| * |q| * K. Then |c * q.k_j| <= B for
// every key, by the Cauchy-Schwarz inequality. With a soft cap, which brings scores closer to 0, B
// is at most the cap.
//   - Without holes in the pattern, the row sees the keys at the distances 0 .. n.
//   - The sum of all weights is at least e^-B * (sum over d = 0 .. n of e^(-m d)). A sink adds to
//   it.
//   - The keys at the distances H .. n weigh at most e^B * (sum over d = H .. n of e^(-m d)), and
//     this sum is at most e^(-m H) times the other one.
//   - So these keys weigh at most e^(2 B - m H) of the sum of all weights. This is at most 2^-24 if
//     H >= (2 B + ln(2^24)) / m.
// So the horizon does not depend on the number of keys. An element of the output that leaves these
// keys out differs by at most 2 * 2^-24 times the largest value of its column: once for the values
// left out, and once for the smaller sum of weights.
//
// In float32, B and H have relative errors of less than 300 * 2^-24, most of it from sums of
// squares of up to 256 elements; kRoundingMargin makes up for it. Squares below 2^-149 vanish, so a
// norm may be 2^-70 too small. If B is infinite or NaN, or if the slope is not positive, the row
// needs all keys. A value beyond the horizon is not read, so a NaN there does not spread.

#include <algorithm>
#include <limits>

#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/attention/attn_rows.cuh"
#include "kernels/cuda/attention/attn_shape.cuh"

namespace quire::kernels::cuda {

inline constexpr float kNegligibleLog2 = 24.0f;  // -log2 of the weight that may be left out
inline constexpr float kRoundingMargin = 1.0f + 0x1p-12f;
inline constexpr float kLostOfNorm = 0x1p-70f;

// Returns the oldest key that a row needs, or 0 if it needs all. `slope` is times log2(e), and
// `query_norm` is |q|.
template <typename T>
__device__ __forceinline__ int OldestNeededKey(const AttnParams<T>& p, int position, float slope,
                                               float query_norm, float key_norm) {
  const float cap = p.soft_cap * kLog2E;
  float bound = p.score_factor * (query_norm + kLostOfNorm) * (key_norm + kLostOfNorm);
  // An infinite bound stays, because a key that is not a number may be behind it, and so does a
  // NaN.
  const bool is_finite = bound < std::numeric_limits<float>::infinity();
  if (p.soft_cap > 0.0f && bound > cap && is_finite) bound = cap;
  const float horizon = kRoundingMargin * (2.0f * bound + kNegligibleLog2) / slope;
  // The comparisons are false for NaN.
  const bool is_near = slope > 0.0f && horizon < static_cast<float>(position);
  return is_near ? position - static_cast<int>(horizon) : 0;
}

// Returns `item` without the whole tiles that none of its rows needs. Nothing is left of an item
// that is too far away as a whole: then key_begin is not less than key_end. All threads of the
// block must call this function, and no thread may access the memory of the tiles.
template <typename T, typename Shape>
__device__ __forceinline__ AttentionItem WithinHorizon(const AttnParams<T>& p, AttnPlace<Shape> at,
                                                       AttentionItem item) {
  if (p.key_norms == nullptr || p.slopes == nullptr) return item;
  const LaneRows rows(p, item, at.row());
  uint32_t q[Shape::kDepthSteps][4];
  rows.LoadQueries(p.query, at.column(), q);
  float squares[2] = {};
#pragma unroll
  for (int k = 0; k < Shape::kDepthSteps; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = Unpack2<T>(q[k][i]);
      squares[i % 2] = fmaf(two.x, two.x, fmaf(two.y, two.y, squares[i % 2]));
    }
  }
  int oldest = item.key_end;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    squares[h] += __shfl_xor_sync(0xffffffffu, squares[h], 1);
    squares[h] += __shfl_xor_sync(0xffffffffu, squares[h], 2);
    oldest = std::min(oldest, OldestNeededKey(p, rows.position[h], rows.slope[h], sqrtf(squares[h]),
                                              p.key_norms[item.kv_head]));
  }
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) {
    oldest = std::min(oldest, __shfl_xor_sync(0xffffffffu, oldest, mask));
  }
  if constexpr (Shape::kWarpsForRows > 1) {
    int* const of_warps = DynamicShared<int>();
    if (at.lane == 0 && at.key_warp == 0) of_warps[at.row_warp] = oldest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < Shape::kWarpsForRows; ++w) oldest = std::min(oldest, of_warps[w]);
    __syncthreads();
  }
  // A tile contains keys from before key_begin as zeros, which only a mask hides. So items begin
  // with whole tiles.
  item.key_begin = std::max(item.key_begin, oldest / Shape::kKeys * Shape::kKeys);
  return item;
}

}  // namespace quire::kernels::cuda
