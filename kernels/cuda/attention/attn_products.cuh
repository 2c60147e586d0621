#pragma once

// The two matrix products of attention, for the rows of one warp and the keys that it takes of a
// tile. Layout of the fragments: primitives.cuh.

#include "kernels/cuda/attention/attn_rows.cuh"
#include "kernels/cuda/attention/attn_tiles.cuh"

namespace quire::kernels::cuda {

// Cache is the type of the cache's elements. attn_fp8.cuh has the products with E4M3.
template <typename T, typename Cache, typename Shape>
struct AttnProducts;

template <typename T, typename Shape>
struct AttnProducts<T, T, Shape> {
  __device__ __forceinline__ void LoadQueries(const T* query, const LaneRows& rows,
                                              AttnPlace<Shape> at,
                                              uint32_t (&q)[Shape::kDepthSteps][4]) const {
    rows.LoadQueries(query, at.column(), q);
  }

  // Returns in `scores` the products of the rows `q` with the warp's keys of `k_tile`.
  __device__ __forceinline__ void MultiplyQueriesByKeys(
      const uint32_t (&q)[Shape::kDepthSteps][4], const T* k_tile, AttnPlace<Shape> at,
      float (&scores)[Shape::kKeyTiles][4]) const {
#pragma unroll
    for (int n = 0; n < Shape::kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
    }
    const int row = at.lane % 8 + at.lane / 16 * 8;
    const T* const rows = k_tile + (at.first_key() + row) * Shape::kHeadDim;
#pragma unroll
    for (int k = 0; k < Shape::kDepthSteps; ++k) {
      const T* const from = rows + SwizzledChunk<Shape::kChunks>(row, k * 2 + at.lane / 8 % 2) * 8;
#pragma unroll
      for (int n = 0; n < Shape::kKeyTiles; n += 2) {
        uint32_t b[4];
        LdMatrix(b, from + n * 8 * Shape::kHeadDim);
        Mma<T>(scores[n], q[k], b[0], b[1]);
        Mma<T>(scores[n + 1], q[k], b[2], b[3]);
      }
    }
  }

  // Adds to `out` the warp's values of `v_tile`, multiplied by the weights. The weights are rounded
  // to T first.
  __device__ __forceinline__ void AddWeightedValues(const float (&weights)[Shape::kKeyTiles][4],
                                                    const T* v_tile, AttnPlace<Shape> at,
                                                    float (&out)[Shape::kProductTiles][4]) const {
    const int row = at.lane % 16;
    const T* const rows = v_tile + (at.first_key() + row) * Shape::kHeadDim;
#pragma unroll
    for (int n = 0; n < Shape::kKeyTiles; n += 2) {
      const float(&low)[4] = weights[n];
      const float(&high)[4] = weights[n + 1];
      const uint32_t a[4] = {Pack2<T>(low[0], low[1]), Pack2<T>(low[2], low[3]),
                             Pack2<T>(high[0], high[1]), Pack2<T>(high[2], high[3])};
#pragma unroll
      for (int c = 0; c < Shape::kProductTiles; c += 2) {
        uint32_t b[4];
        LdMatrixTransposed(b, rows + n * 8 * Shape::kHeadDim +
                                  SwizzledChunk<Shape::kChunks>(row, c + at.lane / 16) * 8);
        Mma<T>(out[c], a, b[0], b[1]);
        Mma<T>(out[c + 1], a, b[2], b[3]);
      }
    }
  }

  // Returns in `columns` the lane's columns of the output, as attn_exchange.cuh and StoreRows take
  // them.
  __device__ __forceinline__ void GetOutput(
      float, const float (&out)[Shape::kProductTiles][4],
      float (&columns)[Shape::kColumnTiles][2 * Shape::kLaneColumns]) const {
#pragma unroll
    for (int c = 0; c < Shape::kColumnTiles; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) columns[c][i] = out[c][i];
    }
  }
};

}  // namespace quire::kernels::cuda
