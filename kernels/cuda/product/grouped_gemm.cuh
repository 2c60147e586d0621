#pragma once

// A grouped GEMM. Rows are divided into groups, and each group has its own weight matrix:
//   out[row] = input[row] . weight[group]^T (+ bias[group])
// Only the device knows which rows belong to which group. The grid is therefore large enough for
// any division, and a block without a tile returns at once.
//
// With input weights, input[row] is multiplied by a factor. The kernels multiply the products
// instead of the input, before the bias is added, so that the input is not rounded again.
//
// GroupedGemmKernel uses mma.sync (sm_80 and up). cp.async loads rows and weights through three
// stages of shared memory. A block (GroupedGemmShape) multiplies
//   16, 64 or 128 rows by 128 rows of the weight, or
//   128 rows by 256 rows of the weight, where it may have 144 KiB of shared memory.
// The larger a tile, the fewer bytes it reads from L2 for a product. WgmmaGroupedGemmKernel has the
// largest (wgmma_grouped_gemm.cuh). GroupedGemmPlainKernel is for float32, and for rows that are
// not a multiple of 16 bytes or not aligned to 16 bytes.
//
// A row of `out` depends only on its row of `input` and on the weight. GroupedGemmKernel sums along
// the depth, 16 elements at a time, for every tile size.

#include "kernels/cuda/device/primitives.cuh"
#include "kernels/cuda/product/grouped_gemm_params.h"
#include "kernels/cuda/product/linear_epilogue.cuh"

namespace quire::kernels::cuda {

// A tile of `kRowTileCount` * 16 rows and the rows of the weight of four warps, kWarpWeightRows
// each. A warp multiplies up to 64 rows, so 128 rows have eight warps.
template <int kRowTileCount, int kWarpWeightRowCount>
struct GroupedGemmShape {
  static constexpr int kRowTiles = kRowTileCount;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kRowWarps = (kRowTiles + 3) / 4;
  static constexpr int kWarpRowTiles = kRowTiles / kRowWarps;
  static constexpr int kThreads = 128 * kRowWarps;
  static constexpr int kWarpWeightRows = kWarpWeightRowCount;
  static constexpr int kWeightRows = 4 * kWarpWeightRows;
  static constexpr int kDepth = 64;                    // elements along the depth in one stage
  static constexpr int kChunks = kDepth / 8;           // of 16 bytes, of a row of a stage
  static constexpr int kRowStep = kThreads / kChunks;  // rows that the block loads at once
  static constexpr int kStages = 3;
  static constexpr int kStageElements = (kRows + kWeightRows) * kDepth;
  static constexpr int kSharedBytes = kStages * kStageElements * 2;
  // Returns the number of output columns that a block computes.
  static constexpr int Cols(bool gated) { return gated ? kWeightRows / 2 : kWeightRows; }
};
inline constexpr unsigned kGemmTilesAtOnce = 8;

// A tile of rows: its group, its first row, and the end of the group's rows. A group of -1 means
// that there is no such tile.
struct GroupTile {
  int32_t group, row, end;
};

// Cuts every group into tiles of `rows` rows and returns the tile with index `tile`. All lanes of a
// warp must call this together.
__device__ __forceinline__ GroupTile FindGroupTile(const int32_t* starts, int32_t num_groups,
                                                   int32_t rows, int32_t tile) {
  constexpr unsigned kAll = 0xffffffffu;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  int32_t before = 0;
  for (int32_t first = 0; first < num_groups; first += 32) {
    const int32_t group = first + lane;
    const int32_t count = group < num_groups ? starts[group + 1] - starts[group] : 0;
    const int32_t tiles = (count + rows - 1) / rows;
    int32_t after = tiles;  // becomes the tiles of this and all earlier lanes
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const int32_t other = __shfl_up_sync(kAll, after, static_cast<unsigned>(delta));
      if (lane >= delta) after += other;
    }
    after += before;
    const bool here = tile < after && tile >= after - tiles;
    int32_t found = here ? group : -1, tiles_before = here ? after - tiles : -1;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      found = std::max(found, __shfl_xor_sync(kAll, found, mask));
      tiles_before = std::max(tiles_before, __shfl_xor_sync(kAll, tiles_before, mask));
    }
    if (found >= 0) {
      return {found, starts[found] + (tile - tiles_before) * rows, starts[found + 1]};
    }
    before = __shfl_sync(kAll, after, 31);
  }
  return {-1, 0, 0};
}

// Returns the number of tiles of FindGroupTile. All lanes of a warp must call this together.
__device__ __forceinline__ int32_t CountGroupTiles(const int32_t* starts, int32_t num_groups,
                                                   int32_t rows) {
  int32_t tiles = 0;
  for (int32_t group = static_cast<int32_t>(threadIdx.x) % 32; group < num_groups; group += 32) {
    tiles += (starts[group + 1] - starts[group] + rows - 1) / rows;
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) tiles += __shfl_xor_sync(0xffffffffu, tiles, mask);
  return tiles;
}

// The tile of rows and the block of columns of the `block`-th product, of `num_tiles` *
// `num_col_blocks`. Products that run at once have many blocks of columns of kGemmTilesAtOnce tiles
// of rows, so that L2 holds what they read: if one tile of rows followed another, each would read
// the whole weight from memory.
struct ProductPlace {
  __device__ __forceinline__ ProductPlace(unsigned block, unsigned num_tiles,
                                          unsigned num_col_blocks) {
    const unsigned first = block / (kGemmTilesAtOnce * num_col_blocks) * kGemmTilesAtOnce;
    const unsigned count = std::min(unsigned{kGemmTilesAtOnce}, num_tiles - first);
    const unsigned within = block - first * num_col_blocks;
    tile = static_cast<int32_t>(first + within % count);
    col_block = static_cast<int32_t>(within / count);
  }

  int32_t tile, col_block;
};

// Returns the factor of the input of `row`.
__device__ __forceinline__ float InputWeight(const GroupedGemmParams& p, int32_t row) {
  return p.input_weights == nullptr ? 1.0f : p.input_weights[p.choices[row]];
}

// Returns a column of a row of `group`, from its products: that of a matrix, or those of the gate
// and of up, whose input has a factor.
__device__ __forceinline__ float FinishProduct(const GroupedGemmParams& p, int32_t group,
                                               int64_t col, float value) {
  return p.bias == nullptr ? value : value + p.bias[group * p.out_cols + col];
}
__device__ __forceinline__ float FinishGated(const GroupedGemmParams& p, int32_t group, int64_t col,
                                             float input_weight, float gate, float up) {
  gate *= input_weight;
  up *= input_weight;
  if (p.bias != nullptr) {
    const int64_t bias_at = group * 2 * p.out_cols + col;
    gate += p.bias[bias_at];
    up += p.bias[bias_at + p.out_cols];
  }
  return ActivateGated(p.activation, p.activation_limit, gate, up);
}

// Stores what FinishProduct and FinishGated return.
__device__ __forceinline__ void StoreProduct(const GroupedGemmParams& p, int32_t group, int32_t row,
                                             int64_t col, float value) {
  static_cast<float*>(p.out)[row * p.out_cols + col] = FinishProduct(p, group, col, value);
}
template <typename T>
__device__ __forceinline__ void StoreGated(const GroupedGemmParams& p, int32_t group, int32_t row,
                                           int64_t col, float gate, float up) {
  static_cast<T*>(p.out)[row * p.out_cols + col] =
      FromFloat<T>(FinishGated(p, group, col, InputWeight(p, row), gate, up));
}

// Grid: [blocks of columns, tiles of rows], in the order of ProductPlace.
template <typename T, int kRowTiles, int kWarpWeightRows, bool kGated>
__global__ void __launch_bounds__(GroupedGemmShape<kRowTiles, kWarpWeightRows>::kThreads)
    GroupedGemmKernel(const __grid_constant__ GroupedGemmParams p) {
  using Shape = GroupedGemmShape<kRowTiles, kWarpWeightRows>;
  constexpr int kRows = Shape::kRows, kDepth = Shape::kDepth, kChunks = Shape::kChunks;
  constexpr int kRowStep = Shape::kRowStep;
  constexpr int kColTiles = kWarpWeightRows / 8;  // of a warp: tiles of 8 rows of the weight
  T* const stages = DynamicShared<T>();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32 % 4;
  const int first_row = thread / 128 * 16 * Shape::kWarpRowTiles;  // of the warp, in the tile
  const ProductPlace place(blockIdx.y * gridDim.x + blockIdx.x, gridDim.y, gridDim.x);
  const GroupTile tile = FindGroupTile(p.starts, p.num_groups, kRows, place.tile);
  if (tile.group < 0) return;
  const int64_t first_col = int64_t{place.col_block} * Shape::Cols(kGated);

  const T* const input = static_cast<const T*>(p.input);
  const T* const weight =
      static_cast<const T*>(p.weight) + int64_t{tile.group} * (kGated ? 2 : 1) * p.cols * p.depth;
  // A thread loads the same chunk of every kRowStep-th row.
  const int load_row = thread / kChunks, load_chunk = thread % kChunks;
  const T* input_rows[kRows / kRowStep];
#pragma unroll
  for (int i = 0; i < kRows / kRowStep; ++i) {
    const int32_t row = tile.row + i * kRowStep + load_row;
    input_rows[i] = nullptr;
    if (row >= tile.end) continue;
    const int64_t from = p.choices == nullptr ? row : p.choices[row] / p.rows_per_input;
    input_rows[i] = input + from * p.depth;
  }
  // If gated, the first half of a warp's rows of the weight are gate rows, and the others up rows.
  const auto weight_row = [&](int i) -> const T* {
    constexpr int kHalf = kWarpWeightRows / 2;
    const int row = i * kRowStep + load_row;
    const int64_t col = first_col + (kGated ? row / kWarpWeightRows * kHalf + row % kHalf : row);
    if (col >= p.cols) return nullptr;
    return weight + ((kGated && row % kWarpWeightRows >= kHalf ? p.cols : 0) + col) * p.depth;
  };
  const int num_steps = static_cast<int>((p.depth + kDepth - 1) / kDepth);
  const auto load = [&](int step) {
    T* const stage = stages + step % Shape::kStages * Shape::kStageElements;
    const int64_t at = int64_t{step} * kDepth + load_chunk * 8;
    const auto copy = [&](int row, const T* from) {
      const bool valid = from != nullptr && at < p.depth;
      CpAsync<16>(stage + row * kDepth + (load_chunk ^ (row % kChunks)) * 8,
                  valid ? from + at : weight, valid);
    };
    if (step < num_steps) {
#pragma unroll
      for (int i = 0; i < kRows / kRowStep; ++i) copy(i * kRowStep + load_row, input_rows[i]);
#pragma unroll
      for (int i = 0; i < Shape::kWeightRows / kRowStep; ++i) {
        copy(kRows + i * kRowStep + load_row, weight_row(i));
      }
    }
    CpAsyncCommit();
  };

  float c[Shape::kWarpRowTiles][kColTiles][4] = {};
#pragma unroll
  for (int step = 0; step < Shape::kStages - 1; ++step) load(step);
  for (int step = 0; step < num_steps; ++step) {
    CpAsyncWait<Shape::kStages - 2>();
    __syncthreads();
    // Overwrites the stage of the previous step, which all threads have read.
    load(step + Shape::kStages - 1);
    const T* const rows = stages + step % Shape::kStages * Shape::kStageElements;
    const T* const weights = rows + (kRows + warp * kWarpWeightRows) * kDepth;
#pragma unroll
    for (int depth = 0; depth < kChunks; depth += 2) {
      uint32_t b[kColTiles / 2][4];
#pragma unroll
      for (int pair = 0; pair < kColTiles / 2; ++pair) {
        const int row = pair * 16 + lane / 16 * 8 + lane % 8;
        LdMatrix(b[pair], weights + row * kDepth + ((depth + lane / 8 % 2) ^ (row % kChunks)) * 8);
      }
#pragma unroll
      for (int r = 0; r < Shape::kWarpRowTiles; ++r) {
        const int row = first_row + r * 16 + lane % 16;
        uint32_t a[4];
        LdMatrix(a, rows + row * kDepth + ((depth + lane / 16) ^ (row % kChunks)) * 8);
#pragma unroll
        for (int j = 0; j < kColTiles; ++j)
          Mma<T>(c[r][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }

  constexpr int kOutTiles = kGated ? kColTiles / 2 : kColTiles;  // tiles of 8 output columns
  const int64_t warp_col = first_col + warp * 8 * kOutTiles;
#pragma unroll
  for (int r = 0; r < Shape::kWarpRowTiles; ++r) {
#pragma unroll
    for (int j = 0; j < kOutTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t row = tile.row + first_row + r * 16 + lane / 4 + i / 2 * 8;
        const int64_t col = warp_col + j * 8 + lane % 4 * 2 + i % 2;
        if (row >= tile.end || col >= p.cols) continue;
        if constexpr (kGated) {
          StoreGated<T>(p, tile.group, row, col, c[r][j][i], c[r][j + kOutTiles][i]);
        } else {
          StoreProduct(p, tile.group, row, col, c[r][j][i]);
        }
      }
    }
  }
}

inline constexpr int kPlainGemmThreads = 128;

// Grid: [blocks of columns, rows]. Each thread computes one output.
template <typename T, bool kGated>
__global__ void __launch_bounds__(kPlainGemmThreads)
    GroupedGemmPlainKernel(const __grid_constant__ GroupedGemmParams p) {
  const int32_t row = static_cast<int32_t>(blockIdx.y);
  const int64_t col = int64_t{blockIdx.x} * kPlainGemmThreads + threadIdx.x;
  if (col >= p.cols) return;
  int32_t group = 0;
  while (p.starts[group + 1] <= row) ++group;
  const int64_t from = p.choices == nullptr ? row : p.choices[row] / p.rows_per_input;
  const T* const input = static_cast<const T*>(p.input) + from * p.depth;
  const T* const weight = static_cast<const T*>(p.weight);
  const auto product = [&](int64_t weight_row) {
    const T* const w = weight + weight_row * p.depth;
    float sum = 0.0f;
    for (int64_t k = 0; k < p.depth; ++k) sum = fmaf(ToFloat(input[k]), ToFloat(w[k]), sum);
    return sum;
  };
  if constexpr (kGated) {
    const int64_t gate = int64_t{group} * 2 * p.cols + col;
    StoreGated<T>(p, group, row, col, product(gate), product(gate + p.cols));
  } else {
    StoreProduct(p, group, row, col, product(int64_t{group} * p.cols + col));
  }
}

}  // namespace quire::kernels::cuda
