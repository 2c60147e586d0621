#pragma once

// The two matrix products of attention with a cache of E4M3.
//
// A product takes elements of T, to which moves of bits widen those of E4M3 (widen_fp8.cuh).
//
// A word has four adjacent elements of a key. Its elements 0 and 2 become one word of a fragment,
// and its elements 1 and 3 another. So the order of a key's elements in the products with queries
// is not that in memory: LoadQueries loads the elements of queries in the same order. A column of
// the output is likewise not where 16-bit values would have it. A lane has four adjacent columns of
// 16, and GetOutput puts them in order.
//
// Each code is compared with that of NaN, and if an item has read one, its output is NaN.

#include <limits>

#include "kernels/cuda/attention/attn_products.cuh"
#include "kernels/cuda/attention/widen_fp8.cuh"

namespace quire::kernels::cuda {

template <typename T, typename Shape>
struct AttnProducts<T, E4M3, Shape> {
  // As LaneRows::LoadQueries. A lane has four adjacent elements of each 16: words 0 and 1 of a
  // fragment have the first and the third, and words 2 and 3 have the second and the fourth.
  __device__ __forceinline__ void LoadQueries(const T* query, const LaneRows& rows,
                                              AttnPlace<Shape> at,
                                              uint32_t (&q)[Shape::kDepthSteps][4]) const {
#pragma unroll
    for (int k = 0; k < Shape::kDepthSteps; ++k) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto four =
            LoadReadOnly<uint2>(query + rows.place[h] * Shape::kHeadDim + k * 16 + at.lane % 4 * 4);
        const float2 low = Unpack2<T>(four.x), high = Unpack2<T>(four.y);
        q[k][h] = Pack2<T>(low.x * In::kRaised, high.x * In::kRaised);
        q[k][2 + h] = Pack2<T>(low.y * In::kRaised, high.y * In::kRaised);
      }
    }
  }

  // Returns in `scores` the products of the rows `q` with the warp's keys of `k_tile`, divided by
  // In::kFactor.
  __device__ __forceinline__ void MultiplyQueriesByKeys(const uint32_t (&q)[Shape::kDepthSteps][4],
                                                        const E4M3* k_tile, AttnPlace<Shape> at,
                                                        float (&scores)[Shape::kKeyTiles][4]) {
#pragma unroll
    for (int n = 0; n < Shape::kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
    }
    const int row = at.lane % 8 + at.lane / 16 * 8;
    const E4M3* const rows = k_tile + (at.first_key() + row) * Shape::kHeadDim;
#pragma unroll
    for (int k = 0; k < Shape::kDepthSteps; k += 2) {
      const E4M3* const from = rows + SwizzledChunk<Shape::kChunks>(row, k + at.lane / 8 % 2) * 16;
#pragma unroll
      for (int n = 0; n < Shape::kKeyTiles; n += 2) {
        uint32_t b[4];
        LdMatrix(b, from + n * 8 * Shape::kHeadDim);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          nan_.Look(b[i]);
          Mma<T>(scores[n + i / 2], q[k + i % 2], Widen<0>(b[i]), Widen<1>(b[i]));
        }
      }
    }
  }

  // Adds to `out` the warp's values of `v_tile`, multiplied by the weights and divided by
  // In::kFactor. The weights are rounded to T first.
  __device__ __forceinline__ void AddWeightedValues(const float (&weights)[Shape::kKeyTiles][4],
                                                    const E4M3* v_tile, AttnPlace<Shape> at,
                                                    float (&out)[Shape::kProductTiles][4]) {
    const int row = at.lane % 16;
    const E4M3* const rows = v_tile + (at.first_key() + row) * Shape::kHeadDim;
#pragma unroll
    for (int n = 0; n < Shape::kKeyTiles; n += 2) {
      const uint32_t a[4] = {Raised(weights[n][0], weights[n][1]),
                             Raised(weights[n][2], weights[n][3]),
                             Raised(weights[n + 1][0], weights[n + 1][1]),
                             Raised(weights[n + 1][2], weights[n + 1][3])};
#pragma unroll
      for (int c = 0; c < Shape::kChunks; c += 2) {
        uint32_t b[4];
        LdMatrixTransposed(b, rows + n * 8 * Shape::kHeadDim +
                                  SwizzledChunk<Shape::kChunks>(row, c + at.lane / 16) * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) nan_.Look(b[i]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int tile = 2 * (c + i);
          Mma<T>(out[tile], a, Widen<0>(b[2 * i]), Widen<0>(b[2 * i + 1]));
          Mma<T>(out[tile + 1], a, Widen<1>(b[2 * i]), Widen<1>(b[2 * i + 1]));
        }
      }
    }
  }

  // Returns in `columns` the lane's columns of the output, as attn_exchange.cuh and StoreRows take
  // them: multiplied by `factor`, or NaN if the warp has read one. All lanes of the warp call this.
  __device__ __forceinline__ void GetOutput(
      float factor, const float (&out)[Shape::kProductTiles][4],
      float (&columns)[Shape::kColumnTiles][2 * Shape::kLaneColumns]) const {
    const bool has_nan = __any_sync(0xffffffffu, nan_.found());
    if (has_nan) factor = std::numeric_limits<float>::quiet_NaN();
#pragma unroll
    for (int c = 0; c < Shape::kColumnTiles; ++c) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        // Row i / 4, column i % 4. Even columns are in the first of two products.
        columns[c][i] = out[2 * c + i % 2][i / 4 * 2 + i % 4 / 2] * factor;
      }
    }
  }

 private:
  using In = E4M3In<T>;
  static_assert(Shape::kChunks % 2 == 0 && Shape::kLaneColumns == 4);

  // Returns elements kFirst and kFirst + 2 of a word.
  template <int kFirst>
  __device__ __forceinline__ static uint32_t Widen(uint32_t word) {
    return WidenPair<T, kFirst, kFirst + 2>(word);
  }
  __device__ __forceinline__ static uint32_t Raised(float low, float high) {
    return Pack2<T>(low * In::kRaised, high * In::kRaised);
  }

  NanFinder nan_;  // among all words that the thread has read
};

}  // namespace quire::kernels::cuda
