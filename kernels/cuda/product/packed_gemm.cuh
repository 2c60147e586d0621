#pragma once

// A GEMM for few tokens whose weight is packed (packed_weight.h):
//   d[token, row] = a[token] . weight[row] (+ d)
//
// A block multiplies 32 rows of the weight, two groups, by all tokens. Its warps take the tiles of
// 64 columns in turns and add up their sums at the end, in the order of the warps. So a row of `d`
// depends on its row of `a` and on the weight alone, not on the number of tokens.
//
// Each warp loads its own tiles with cp.async through a few stages, and no barrier of the block is
// needed before the end. A weight is dequantised in registers, with one rounding to T, which gives
// the weights that DequantizeWeightKernel writes. The weights are the A fragment of mma.sync and
// the tokens are the columns of the B fragment, so up to 8 tokens take one product for each 16
// columns, and up to 16 tokens take two.
//
// PackedBatchGemmKernel (packed_batch_gemm.cuh) multiplies more tokens, with the same sums.
//
// PackedProduct is the product of one block. PackedGroupedGemmKernel (packed_grouped_gemm.cuh) has
// it too, so a row of an expert has the bits that it has in a weight of its own.

#include "kernels/cuda/product/packed_choice.h"
#include "kernels/cuda/product/packed_dequantize.cuh"

namespace quire::kernels::cuda {

struct PackedGemmParams {
  void* d;                // [tokens, rows], T or, if `writes_floats`, float32
  const void* a;          // [tokens, cols]  T; each row at a multiple of 16 bytes
  const uint8_t* weight;  // packed, [rows, cols]
  int64_t rows, cols;
  int64_t lda, ldd;  // elements from one row to the next
  int32_t num_tokens;
  bool writes_floats;
  bool accumulate;  // true: adds the content of d, before the one rounding
};

template <WeightType kType, int kTokenTiles_>
struct PackedGemmShape {
  using Format = PackedFormatOf<kType>;
  static constexpr int kWarps = kPackedParts, kThreads = 32 * kWarps;
  static constexpr int kRowTiles = 2, kRows = kGroupRows * kRowTiles;
  static constexpr int kTokenTiles = kTokenTiles_, kTokens = 8 * kTokenTiles;
  // A stage of one warp: for each group a tile and its header, then the activations of the tile.
  static constexpr int kTileChunks = Format::kTileBytes / 16;
  static constexpr int kChunks = kTileChunks + Format::kHeaderBytes / 16;
  static constexpr int kWeightBytes = kRowTiles * kChunks * 16;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kPackedTileCols * 2;
  // So that at least 20 KiB are on their way in a block, which Little's law asks of a
  // multiprocessor of an H200, and that a block fits the 99 KiB of sm_86.
  static constexpr int kStages = Format::kCodeBits == 4 && kTokenTiles == 1 ? 4 : 3;
  static constexpr int kSharedBytes = kWarps * kStages * kStageBytes;
  static constexpr int kSumStride = kRows + 4;  // floats; avoids bank conflicts
  static_assert(kWarps * kTokens * kSumStride * 4 <= kSharedBytes);
  // From a tile of a warp to its next, and from the header of one to that of the other.
  static constexpr int kStepBytes = static_cast<int>(Format::TileAt(kWarps) - Format::TileAt(0));
  static_assert(kWarps % Format::kTilesOfHeader == 0);
  static_assert(kChunks <= 64 || (kChunks == kTileChunks && kChunks <= 96));
};

// Reads the weights that `lane` holds of a tile in shared memory, as the fragments A of the four
// products of the tile. Product i takes the lane's columns 4 i to 4 i + 3.
template <typename T, WeightType kType>
__device__ __forceinline__ void LoadFragments(const uint8_t* tile, int lane,
                                              uint32_t (&fragments)[4][4]) {
  LaneWeights<kType> weights;
  LoadLane(tile, tile + PackedFormatOf<kType>::kTileBytes, lane, weights);
  uint32_t pairs[2][kLaneCols / 2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float values[kLaneCols];
    ScaledLane<T>(weights, half, values);
#pragma unroll
    for (int i = 0; i < kLaneCols / 2; ++i) {
      pairs[half][i] = Pack2<T>(values[2 * i], values[2 * i + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t a[4] = {pairs[0][2 * i], pairs[1][2 * i], pairs[0][2 * i + 1],
                           pairs[1][2 * i + 1]};
#pragma unroll
    for (int j = 0; j < 4; ++j) fragments[i][j] = a[j];
  }
}

// Multiplies the block's rows by its tokens, and leaves the sums of the warps in shared memory,
// where PackedSum reads them. group_of(r) returns the r-th of the block's groups, and token_of(t)
// the activations of token 8 * t + lane / 4. Those of tokens past `num_tokens` are not read.
// Functions, so that ptxas computes both where they are used, with fewer registers.
template <typename T, WeightType kType, int kTokenTiles, typename Group, typename Token>
__device__ __forceinline__ void PackedProduct(int64_t cols, int32_t num_tokens, Group group_of,
                                              Token token_of) {
  using Shape = PackedGemmShape<kType, kTokenTiles>;
  using Format = PackedFormatOf<kType>;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  uint8_t* const stages = DynamicShared<uint8_t>() + warp * (Shape::kStages * Shape::kStageBytes);
  const auto num_tiles = static_cast<int32_t>(Format::NumTiles(cols));

  // The sources of this lane's copies, which the same number of bytes separates from one tile of
  // the warp to its next. A lane copies one or two chunks of 16 bytes of a tile and its header.
  const int second = lane + 32;
  const bool has_second = second < Shape::kChunks;
  const int second_at = second < Shape::kTileChunks
                            ? second * 16
                            : static_cast<int>(Format::HeaderAt(warp) - Format::TileAt(warp)) +
                                  (second - Shape::kTileChunks) * 16;
  const uint8_t* sources[Shape::kRowTiles];
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    sources[r] = group_of(r) + Format::TileAt(warp);
  }
  int32_t col = warp * kPackedTileCols + lane % 4 * kLaneCols;
  const T* tokens[kTokenTiles];
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    tokens[t] = token_of(t) + col;
  }
  int32_t tile_to_load = warp;
  uint8_t* stage_to_load = stages;
  const auto next_stage = [&](uint8_t* stage) {
    stage += Shape::kStageBytes;
    return stage == stages + Shape::kStages * Shape::kStageBytes ? stages : stage;
  };
  const auto load = [&] {
    if (tile_to_load < num_tiles) {
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        uint8_t* const to = stage_to_load + r * Shape::kChunks * 16;
        CpAsync<16>(to + lane * 16, sources[r] + lane * 16, true);
        if (has_second) CpAsync<16>(to + second * 16, sources[r] + second_at, true);
        if constexpr (Shape::kChunks > 64) {
          if (lane < Shape::kChunks - 64) {
            CpAsync<16>(to + (lane + 64) * 16, sources[r] + (lane + 64) * 16, true);
          }
        }
        sources[r] += Shape::kStepBytes;
      }
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const bool valid = t * 8 + lane / 4 < num_tokens && col < cols;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          CpAsync<16>(stage_to_load + Shape::kWeightBytes + ((t * 2 + i) * 32 + lane) * 16,
                      tokens[t] + i * 8, valid);
        }
        tokens[t] += Shape::kWarps * kPackedTileCols;
      }
    }
    CpAsyncCommit();
    col += Shape::kWarps * kPackedTileCols;
    tile_to_load += Shape::kWarps;
    stage_to_load = next_stage(stage_to_load);
  };

  float sums[Shape::kRowTiles][kTokenTiles][4] = {};
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) load();
  uint8_t* stage = stages;
  for (int32_t tile = warp; tile < num_tiles; tile += Shape::kWarps) {
    CpAsyncWait<Shape::kStages - 2>();
    __syncwarp();
    load();  // overwrites the stage of the previous tile, which all lanes have read
    uint32_t activations[kTokenTiles][8];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 four = *reinterpret_cast<const uint4*>(stage + Shape::kWeightBytes +
                                                           ((t * 2 + i) * 32 + lane) * 16);
        activations[t][i * 4 + 0] = four.x;
        activations[t][i * 4 + 1] = four.y;
        activations[t][i * 4 + 2] = four.z;
        activations[t][i * 4 + 3] = four.w;
      }
    }
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      uint32_t fragments[4][4];
      LoadFragments<T, kType>(stage + r * Shape::kChunks * 16, lane, fragments);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          Mma<T>(sums[r][t], fragments[i], activations[t][2 * i], activations[t][2 * i + 1]);
        }
      }
    }
    stage = next_stage(stage);
  }
  // The groups of copies that are not waited for are empty.
  __syncthreads();

  float* const shared = DynamicShared<float>();
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = r * kGroupRows + lane / 4 + i / 2 * 8;
        const int token = t * 8 + lane % 4 * 2 + i % 2;
        shared[(warp * Shape::kTokens + token) * Shape::kSumStride + row] = sums[r][t][i];
      }
    }
  }
  __syncthreads();
}

// Returns the product of a token and one of the block's rows, after PackedProduct.
template <typename T, WeightType kType, int kTokenTiles>
__device__ __forceinline__ float PackedSum(int token, int row) {
  using Shape = PackedGemmShape<kType, kTokenTiles>;
  const float* const shared = DynamicShared<float>();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < Shape::kWarps; ++w) {
    sum += shared[(w * Shape::kTokens + token) * Shape::kSumStride + row];
  }
  return sum * (1.0f / kLaneScale<T, kType>);  // a power of two
}

// Writes the product of a token and a row.
template <typename T>
__device__ __forceinline__ void StorePackedProduct(const PackedGemmParams& p, int token,
                                                   int64_t row, float sum) {
  const int64_t at = token * p.ldd + row;
  if (p.writes_floats) {
    float* const to = static_cast<float*>(p.d) + at;
    *to = p.accumulate ? sum + *to : sum;
  } else {
    T* const to = static_cast<T*>(p.d) + at;
    *to = FromFloat<T>(p.accumulate ? sum + ToFloat(*to) : sum);
  }
}

// Grid: [blocks of 32 rows].
template <typename T, WeightType kType, int kTokenTiles>
__global__ void __launch_bounds__(PackedGemmShape<kType, kTokenTiles>::kThreads)
    PackedGemmKernel(const __grid_constant__ PackedGemmParams p) {
  using Shape = PackedGemmShape<kType, kTokenTiles>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int64_t first_row = int64_t{blockIdx.x} * Shape::kRows;
  const auto group_of = [&](int r) {
    // After the last group, the same group again: its sums are not stored.
    const int64_t group = std::min(first_row + r * kGroupRows, p.rows - 1) / kGroupRows;
    return p.weight + group * Shape::Format::GroupBytes(p.cols);
  };
  const auto token_of = [&](int t) {
    const int token = t * 8 + lane / 4;
    return static_cast<const T*>(p.a) + token * p.lda;
  };
  PackedProduct<T, kType, kTokenTiles>(p.cols, p.num_tokens, group_of, token_of);
  for (int i = thread; i < p.num_tokens * Shape::kRows; i += Shape::kThreads) {
    const int token = i / Shape::kRows, row = i % Shape::kRows;
    if (first_row + row >= p.rows) continue;
    StorePackedProduct<T>(p, token, first_row + row, PackedSum<T, kType, kTokenTiles>(token, row));
  }
}

}  // namespace quire::kernels::cuda
