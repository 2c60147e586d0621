#pragma once

// Warps that have the same rows add up their results.

#include "kernels/cuda/attn_shape.cuh"
#include "kernels/cuda/attn_softmax.cuh"

namespace quire::kernels::cuda {

// The results of all warps in the memory of the tiles: outputs, [key warp][row of the item], then
// all maxima, then all sums.
template <typename Shape>
struct WarpResults {
  // Rows are padded by 8 elements. So the four rows that half a warp accesses at once have
  // different banks.
  static constexpr int kStride = Shape::kHeadDim + 8;
  static constexpr int kRows = Shape::kWarpsForKeys * Shape::kRows;
  static_assert(kRows * (kStride + 2) * 4 <= Shape::kSharedBytes);

  __device__ __forceinline__ static float* out(int row) {
    return DynamicShared<float>() + row * kStride;
  }
  __device__ __forceinline__ static float* maximum() { return out(kRows); }
  __device__ __forceinline__ static float* sum() { return maximum() + kRows; }
};

// Adds up the results of all warps with the rows of this warp. Returns in `own` the column tiles
// that this warp stores: own[i] is column tile i * kWarpsForKeys + key_warp. No thread may access
// the tiles any more. All threads of the block must call this function.
template <typename Shape>
__device__ __forceinline__ void AddUpWarps(AttnPlace<Shape> at, OnlineSoftmax& softmax,
                                           const float (&out)[Shape::kColumnTiles][4],
                                           float (&own)[Shape::kOwnColumnTiles][4]) {
  using Results = WarpResults<Shape>;
  const int column = at.column();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = at.key_warp * Shape::kRows + at.row() + h * 8;
    if (at.lane % 4 == 0) {
      Results::maximum()[row] = softmax.maximum[h];
      Results::sum()[row] = softmax.sum[h];
    }
#pragma unroll
    for (int c = 0; c < Shape::kColumnTiles; ++c) {
      StoreVector(Results::out(row) + c * 8 + column,
                  make_float2(out[c][h * 2], out[c][h * 2 + 1]));
    }
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = at.row() + h * 8;
    float m = -INFINITY;
#pragma unroll
    for (int w = 0; w < Shape::kWarpsForKeys; ++w) {
      m = fmaxf(m, Results::maximum()[w * Shape::kRows + row]);
    }
    const float subtract = m == -INFINITY ? 0.0f : m;
    float weight[Shape::kWarpsForKeys];
    softmax.maximum[h] = m;
    softmax.sum[h] = 0.0f;
#pragma unroll
    for (int w = 0; w < Shape::kWarpsForKeys; ++w) {
      weight[w] = Exp2(Results::maximum()[w * Shape::kRows + row] - subtract);
      softmax.sum[h] += weight[w] * Results::sum()[w * Shape::kRows + row];
    }
#pragma unroll
    for (int i = 0; i < Shape::kOwnColumnTiles; ++i) {
      const int c = i * Shape::kWarpsForKeys + at.key_warp;
      if (!Shape::HasColumnTile(c)) continue;
      float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int w = 0; w < Shape::kWarpsForKeys; ++w) {
        const auto x =
            *reinterpret_cast<const float2*>(Results::out(w * Shape::kRows + row) + c * 8 + column);
        total.x += weight[w] * x.x;
        total.y += weight[w] * x.y;
      }
      own[i][h * 2] = total.x;
      own[i][h * 2 + 1] = total.y;
    }
  }
  __syncthreads();
}

}  // namespace quire::kernels::cuda
