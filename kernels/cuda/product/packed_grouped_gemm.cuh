#pragma once

// The grouped GEMM of grouped_gemm.cuh for packed weights (packed_weight.h). The matrices of the
// groups follow one another in one packed weight. The columns of `out` are a multiple of 32, or of
// 16 if gated.
//
// A block multiplies up to 8 or 16 rows of a group by 32 rows of its matrix, as in packed_gemm.cuh.
// If gated, these are 16 rows of the gate and the same 16 rows of up. A group of more rows has
// several tiles, and each tile reads the weight again.
//
// A row of `out` depends only on its row of `input` and on the weight. The weights are those that
// DequantizeWeightKernel writes, but the order of sums is not that of GroupedGemmKernel.

#include "kernels/cuda/product/grouped_gemm.cuh"
#include "kernels/cuda/product/packed_gemm.cuh"

namespace quire::kernels::cuda {

// Grid: [blocks of columns, tiles of rows]. `weight` is packed. An H200 has shared memory for three
// blocks of 8 rows or two of 16 at once, so ptxas need not save registers for a fourth.
template <typename T, WeightType kType, int kTokenTiles, bool kGated>
__global__ void __launch_bounds__(PackedGemmShape<kType, kTokenTiles>::kThreads,
                                  kTokenTiles == 1 ? 3 : 2)
    PackedGroupedGemmKernel(const __grid_constant__ GroupedGemmParams p) {
  using Shape = PackedGemmShape<kType, kTokenTiles>;
  constexpr int kCols = kGated ? kGroupRows : Shape::kRows;  // that a block writes
  static_assert(Shape::kRows == 2 * kGroupRows);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const GroupTile tile =
      FindGroupTile(p.starts, p.num_groups, Shape::kTokens, static_cast<int32_t>(blockIdx.y));
  if (tile.group < 0) return;
  const int64_t first_col = int64_t{blockIdx.x} * kCols;

  const int32_t num_tokens = std::min(tile.end - tile.row, int{Shape::kTokens});
  const int64_t group_bytes = Shape::Format::GroupBytes(p.depth);
  const int64_t first_row = tile.group * (kGated ? 2 : 1) * p.cols + first_col;
  const auto group_of = [&](int r) {
    const int64_t group = first_row / kGroupRows + r * (kGated ? p.cols / kGroupRows : 1);
    return static_cast<const uint8_t*>(p.weight) + group * group_bytes;
  };
  const auto token_of = [&](int t) {
    const auto* const input = static_cast<const T*>(p.input);
    const int32_t row = tile.row + t * 8 + lane / 4;
    if (row >= tile.end) return input;
    const int64_t from = p.choices == nullptr ? row : p.choices[row] / p.rows_per_input;
    return input + from * p.depth;
  };
  PackedProduct<T, kType, kTokenTiles>(p.depth, num_tokens, group_of, token_of);

  for (int i = thread; i < num_tokens * kCols; i += Shape::kThreads) {
    const int token = i / kCols, col = i % kCols;
    const float sum = PackedSum<T, kType, kTokenTiles>(token, col);
    if constexpr (kGated) {
      const float up = PackedSum<T, kType, kTokenTiles>(token, kGroupRows + col);
      StoreGated<T>(p, tile.group, tile.row + token, first_col + col, sum, up);
    } else {
      StoreProduct(p, tile.group, tile.row + token, first_col + col, sum);
    }
  }
}

}  // namespace quire::kernels::cuda
