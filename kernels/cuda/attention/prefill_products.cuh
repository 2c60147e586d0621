#pragma once

// The two matrix products of PrefillAttnKernel, for the 64 rows of one warpgroup. Both only issue
// their wgmmas, as one group each.

#include "kernels/cuda/attention/prefill_shape.cuh"

namespace quire::kernels::cuda {

// Sets `scores` to the products of the rows with the keys of a tile. `query` is row 0 of the
// warpgroup in the tile of queries.
template <typename T, typename Shape>
__device__ __forceinline__ void IssueScores(const unsigned char* query, const unsigned char* keys,
                                            float (&scores)[Shape::kKeyTiles][4]) {
#pragma unroll
  for (int k = 0; k < Shape::kDepthSteps; ++k) {
    const int piece = k / 4, within = k % 4 * 32;
    WgmmaShared<T>(scores, WgmmaDescriptor(query + piece * Shape::kRows * 128 + within, 16, 1024),
                   WgmmaDescriptor(keys + piece * Shape::kKeys * 128 + within, 16, 1024), k > 0);
  }
  WgmmaCommit();
}

// Adds to `out` the values of a tile, multiplied by the weights.
template <typename T, typename Shape>
__device__ __forceinline__ void IssueWeightedValues(
    const uint32_t (&weights)[Shape::kKeyTiles / 2][4], const unsigned char* values,
    float (&out)[Shape::kColumnTiles][4]) {
#pragma unroll
  for (int k = 0; k < Shape::kKeyTiles / 2; ++k) {
    WgmmaRegisters<T>(out, weights[k],
                      WgmmaDescriptor(values + k * 16 * 128, Shape::kKeys * 128, 1024));
  }
  WgmmaCommit();
}

// Rounds the weights of a tile to T, in the layout of the operand of IssueWeightedValues.
template <typename T, int kKeyTiles>
__device__ __forceinline__ void PackWeights(const float (&weights)[kKeyTiles][4],
                                            uint32_t (&packed)[kKeyTiles / 2][4]) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    packed[n / 2][n % 2 * 2] = Pack2<T>(weights[n][0], weights[n][1]);
    packed[n / 2][n % 2 * 2 + 1] = Pack2<T>(weights[n][2], weights[n][3]);
  }
}

}  // namespace quire::kernels::cuda
