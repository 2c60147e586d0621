#pragma once

// Warps that have the same rows add up their results.

#include "kernels/cuda/attention/attn_shape.cuh"
#include "kernels/cuda/attention/attn_softmax.cuh"

namespace quire::kernels::cuda {

// The results of all warps in the memory of the tiles: outputs, [key warp][row of the item], then
// all maxima, then all sums.
template <typename Shape>
struct WarpResults {
  // Rows are padded by a column tile. So the rows that lanes access at once, four rows of 8 columns
  // or two rows of 16, have different banks.
  static constexpr int kStride = Shape::kHeadDim + 4 * Shape::kLaneColumns;
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
__device__ __forceinline__ void AddUpWarps(
    AttnPlace<Shape> at, OnlineSoftmax& softmax,
    const float (&out)[Shape::kColumnTiles][2 * Shape::kLaneColumns],
    float (&own)[Shape::kOwnColumnTiles][2 * Shape::kLaneColumns]) {
  using Results = WarpResults<Shape>;
  constexpr int kLaneColumns = Shape::kLaneColumns, kTileColumns = 4 * kLaneColumns;
  const int column = at.out_column();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = at.key_warp * Shape::kRows + at.row() + h * 8;
    if (at.lane % 4 == 0) {
      Results::maximum()[row] = softmax.maximum[h];
      Results::sum()[row] = softmax.sum[h];
    }
#pragma unroll
    for (int c = 0; c < Shape::kColumnTiles; ++c) {
      LaneFloats<kLaneColumns> x;
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) x.at[j] = out[c][h * kLaneColumns + j];
      StoreVector(Results::out(row) + c * kTileColumns + column, x);
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
      LaneFloats<kLaneColumns> total = {};
#pragma unroll
      for (int w = 0; w < Shape::kWarpsForKeys; ++w) {
        const auto x = *reinterpret_cast<const LaneFloats<kLaneColumns>*>(
            Results::out(w * Shape::kRows + row) + c * kTileColumns + column);
#pragma unroll
        for (int j = 0; j < kLaneColumns; ++j) total.at[j] += weight[w] * x.at[j];
      }
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) own[i][h * kLaneColumns + j] = total.at[j];
    }
  }
  __syncthreads();
}

}  // namespace quire::kernels::cuda
