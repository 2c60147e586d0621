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

#include "kernels/cuda/packed_dequantize.cuh"

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
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
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
};

// Grid: [blocks of 32 rows].
template <typename T, WeightType kType, int kTokenTiles>
__global__ void __launch_bounds__(PackedGemmShape<kType, kTokenTiles>::kThreads)
    PackedGemmKernel(const __grid_constant__ PackedGemmParams p) {
  using Shape = PackedGemmShape<kType, kTokenTiles>;
  using Format = PackedFormatOf<kType>;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  uint8_t* const stages = DynamicShared<uint8_t>() + warp * (Shape::kStages * Shape::kStageBytes);
  const int64_t first_row = int64_t{blockIdx.x} * Shape::kRows;
  const int64_t last_group = (p.rows - 1) / kGroupRows;
  const int64_t group_bytes = Format::GroupBytes(p.cols), num_tiles = Format::NumTiles(p.cols);

  const auto load = [&](int64_t step) {
    const int64_t tile = step * Shape::kWarps + warp;
    if (tile < num_tiles) {
      uint8_t* const stage = stages + step % Shape::kStages * Shape::kStageBytes;
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        // After the last group, the same group again: its sums are not stored.
        const int64_t group = std::min(first_row / kGroupRows + r, last_group);
        const uint8_t* const from = p.weight + group * group_bytes;
        uint8_t* const to = stage + r * Shape::kChunks * 16;
#pragma unroll
        for (int chunk = lane; chunk < Shape::kChunks; chunk += 32) {
          const int64_t at = chunk < Shape::kTileChunks
                                 ? Format::TileAt(tile) + chunk * 16
                                 : Format::HeaderAt(tile) + (chunk - Shape::kTileChunks) * 16;
          CpAsync<16>(to + chunk * 16, from + at, true);
        }
      }
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const int token = t * 8 + lane / 4;
        const int64_t col = tile * kPackedTileCols + lane % 4 * kLaneCols;
        const T* const from = static_cast<const T*>(p.a) + token * p.lda + col;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool valid = token < p.num_tokens && col < p.cols;
          CpAsync<16>(stage + Shape::kWeightBytes + ((t * 2 + i) * 32 + lane) * 16,
                      valid ? from + i * 8 : p.a, valid);
        }
      }
    }
    CpAsyncCommit();
  };

  float sums[Shape::kRowTiles][kTokenTiles][4] = {};
#pragma unroll
  for (int step = 0; step < Shape::kStages - 1; ++step) load(step);
  for (int64_t step = 0; step * Shape::kWarps + warp < num_tiles; ++step) {
    CpAsyncWait<Shape::kStages - 2>();
    __syncwarp();
    // Overwrites the stage of the previous step, which all lanes have read.
    load(step + Shape::kStages - 1);
    const uint8_t* const stage = stages + step % Shape::kStages * Shape::kStageBytes;
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
      const uint8_t* const tile = stage + r * Shape::kChunks * 16;
      LaneWeights<kType> weights;
      LoadLane(tile, tile + Format::kTileBytes, lane, weights);
      uint32_t pairs[2][kLaneCols / 2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float values[kLaneCols];
        DequantizeLane(weights, half, values);
#pragma unroll
        for (int i = 0; i < kLaneCols / 2; ++i) {
          pairs[half][i] = Pack2<T>(values[2 * i], values[2 * i + 1]);
        }
      }
      // Product i takes the lane's columns 4 i to 4 i + 3.
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t a[4] = {pairs[0][2 * i], pairs[1][2 * i], pairs[0][2 * i + 1],
                               pairs[1][2 * i + 1]};
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          Mma<T>(sums[r][t], a, activations[t][2 * i], activations[t][2 * i + 1]);
        }
      }
    }
  }
  CpAsyncWait<0>();
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
  for (int i = thread; i < p.num_tokens * Shape::kRows; i += Shape::kThreads) {
    const int token = i / Shape::kRows, row = i % Shape::kRows;
    if (first_row + row >= p.rows) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      sum += shared[(w * Shape::kTokens + token) * Shape::kSumStride + row];
    }
    const int64_t at = token * p.ldd + first_row + row;
    if (p.writes_floats) {
      float* const to = static_cast<float*>(p.d) + at;
      *to = p.accumulate ? sum + *to : sum;
    } else {
      T* const to = static_cast<T*>(p.d) + at;
      *to = FromFloat<T>(p.accumulate ? sum + ToFloat(*to) : sum);
    }
  }
}

}  // namespace quire::kernels::cuda
