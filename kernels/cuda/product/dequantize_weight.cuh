#pragma once

// Writes rows of a packed weight (packed_weight.h) as T, row-major, for a GEMM that reads them.

#include "kernels/cuda/product/packed_dequantize.cuh"

namespace quire::kernels::cuda {

struct DequantizeWeightParams {
  void* out;              // [num_rows, cols]  T, at a multiple of 16 bytes
  const uint8_t* weight;  // packed
  int64_t first_row;      // of the weight; becomes row 0 of `out`
  int64_t num_rows, cols;
};

inline constexpr int kDequantizeThreads = 128;
inline constexpr int kDequantizeTiles = kDequantizeThreads / 32;  // of one block

// Grid: [groups with a row in range, blocks of tiles]. Each warp writes a tile.
template <typename T, WeightType kType>
__global__ void __launch_bounds__(kDequantizeThreads)
    DequantizeWeightKernel(const __grid_constant__ DequantizeWeightParams p) {
  using Format = PackedFormatOf<kType>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t group = p.first_row / kGroupRows + blockIdx.x;
  const int64_t tile = int64_t{blockIdx.y} * kDequantizeTiles + warp;
  const int64_t col = tile * kPackedTileCols + lane % 4 * kLaneCols;
  if (col >= p.cols) return;
  const uint8_t* const from = p.weight + group * Format::GroupBytes(p.cols);
  LaneWeights<kType> weights;
  LoadLane(from + Format::TileAt(tile), from + Format::HeaderAt(tile), lane, weights);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = group * kGroupRows + lane / 4 + half * 8 - p.first_row;
    if (row < 0 || row >= p.num_rows) continue;
    float values[kLaneCols];
    DequantizeLane(weights, half, values);
    T* const out = static_cast<T*>(p.out) + row * p.cols + col;
#pragma unroll
    for (int i = 0; i < kLaneCols; i += 8) {
      StoreVector(out + i, make_uint4(Pack2<T>(values[i], values[i + 1]),
                                      Pack2<T>(values[i + 2], values[i + 3]),
                                      Pack2<T>(values[i + 4], values[i + 5]),
                                      Pack2<T>(values[i + 6], values[i + 7])));
    }
  }
}

}  // namespace quire::kernels::cuda
