#pragma once

#include <limits>

#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/product/packed_dequantize.cuh"

namespace quire::kernels::cuda {

// One part of the table, which may be stacked of several.
struct EmbedParams {
  void* out;                 // [tokens, cols]
  const int32_t* token_ids;  // [tokens]
  const void* table;         // the part's rows
  int64_t first_row, num_rows, cols;
  int64_t rows;  // of all parts
  float scale;
  // The scale of row r and column c of a part in e4m3 is
  // scales[r / rows_of_scale * scale_stride + c / cols_of_scale].
  const float* scales;
  int64_t rows_of_scale, cols_of_scale, scale_stride;
};

// Returns the row of the part for this block's token, or a negative number if another part has it.
// Tokens that no part has are row 0 of each, and `scale` becomes NaN.
__device__ __forceinline__ int64_t EmbedRow(const EmbedParams& p, float& scale) {
  const int64_t id = p.token_ids[blockIdx.x];
  scale = p.scale;
  if (id < 0 || id >= p.rows) {
    scale = std::numeric_limits<float>::quiet_NaN();
    return 0;
  }
  const int64_t row = id - p.first_row;
  return row < p.num_rows ? row : -1;
}

// One block per token.
template <typename Table, typename T, int kCount>
__global__ void EmbedKernel(const __grid_constant__ EmbedParams p) {
  float scale;
  const int64_t index = EmbedRow(p, scale);
  if (index < 0) return;
  const Table* const row = static_cast<const Table*>(p.table) + index * p.cols;
  T* const out = static_cast<T*>(p.out) + int64_t{blockIdx.x} * p.cols;
  ForEachVector<kCount>(p.cols, [&](int64_t i) {
    float values[kCount];
    LoadElements(row + i, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] *= scale;
    StoreElements(out + i, values);
  });
}

// The same for a part in e4m3. One block per token.
template <typename T>
__global__ void EmbedFp8Kernel(const __grid_constant__ EmbedParams p) {
  float scale;
  const int64_t row = EmbedRow(p, scale);
  if (row < 0) return;
  const E4M3* const codes = static_cast<const E4M3*>(p.table) + row * p.cols;
  const float* const scales = p.scales + row / p.rows_of_scale * p.scale_stride;
  T* const out = static_cast<T*>(p.out) + int64_t{blockIdx.x} * p.cols;
  ForEachVector<kLaneCols>(p.cols, [&](int64_t col) {
    float values[kLaneCols];
    LoadElements(codes + col, values);
    const float of_codes = scales[col / p.cols_of_scale];
#pragma unroll
    for (int i = 0; i < kLaneCols; ++i) values[i] = of_codes * values[i] * scale;
    StoreElements(out + col, values);
  });
}

// The same for a packed part. A thread takes the 16 columns of a lane. One block per token.
template <typename T, WeightType kType>
__global__ void EmbedPackedKernel(const __grid_constant__ EmbedParams p) {
  using Format = PackedFormatOf<kType>;
  float scale;
  const int64_t row = EmbedRow(p, scale);
  if (row < 0) return;
  const uint8_t* const group =
      static_cast<const uint8_t*>(p.table) + row / kGroupRows * Format::GroupBytes(p.cols);
  T* const out = static_cast<T*>(p.out) + int64_t{blockIdx.x} * p.cols;
  ForEachVector<kLaneCols>(p.cols, [&](int64_t col) {
    const int64_t tile = col / kPackedTileCols;
    const int lane = static_cast<int>(row % 8 * 4 + col % kPackedTileCols / kLaneCols);
    LaneWeights<kType> weights;
    LoadLane(group + Format::TileAt(tile), group + Format::HeaderAt(tile), lane, weights);
    float values[kLaneCols];
    if (row % kGroupRows < 8) {
      DequantizeLane(weights, 0, values);
    } else {
      DequantizeLane(weights, 1, values);
    }
#pragma unroll
    for (int i = 0; i < kLaneCols; ++i) values[i] *= scale;
    StoreElements(out + col, values);
  });
}

}  // namespace quire::kernels::cuda
