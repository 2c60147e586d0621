#pragma once

// The parameters of the grouped GEMMs (grouped_gemm.cuh).

#include <algorithm>
#include <cstdint>

#include "kernels/activation.h"

namespace quire::kernels::cuda {

struct GroupedGemmParams {
  // [rows, out_cols], of which the first `cols` columns are written. If gated, the dtype is that of
  // `input`, else float32.
  void* out;
  const void* input;  // [rows / rows_per_input, depth], or [rows, depth] without `choices`
  // [num_groups, cols, depth]. If gated, [num_groups, 2, cols, depth]: gate, then up.
  const void* weight;
  // [num_groups, out_cols], or if gated [num_groups, 2, out_cols]; null: none
  const float* bias;
  const int32_t* starts;  // [num_groups + 1]: each group's first row
  // [rows]. Row `row` of `out` uses input row choices[row] / rows_per_input. If null, it uses input
  // row `row`.
  const int32_t* choices;
  // [rows], or null. The input of row `row` is multiplied by input_weights[choices[row]]. Used only
  // by gated kernels, and only with `choices`.
  const float* input_weights;
  int32_t num_groups, rows_per_input;
  int64_t cols, out_cols, depth;
  Activation activation;   // must be gated; only gated kernels use it
  float activation_limit;  // of kClampedSiluMul
};

// Returns the most tiles of `tile_rows` rows that `num_rows` rows can have. A group has at most one
// tile that is not full.
inline int64_t MostGroupTiles(const GroupedGemmParams& params, int64_t num_rows,
                              int64_t tile_rows) {
  return std::min(num_rows, num_rows / tile_rows + int64_t{params.num_groups});
}

}  // namespace quire::kernels::cuda
