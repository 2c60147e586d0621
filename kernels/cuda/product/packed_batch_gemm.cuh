#pragma once

// A GEMM for 17 to 64 tokens whose weight is packed (packed_weight.h). Its sums are those of
// PackedGemmKernel (packed_gemm.cuh), to the bit.
//
// A block multiplies 256 rows of the weight, 32 in each warp, by all tokens. So the weight is read
// once, and the activations come from L2 once for 256 rows: half a byte for each weight at 64
// tokens, where a weight of Q4_K has 0.58. In shared memory they serve all warps, and each fragment
// of weights is dequantised once for all tokens.
//
// A sum has kPackedParts parts, as in PackedGemmKernel: part p adds up the tiles p, p + 8, ... A
// block computes one part after another, and adds them up in this order. Where a weight has too few
// rows for all multiprocessors, several blocks have the same rows and other parts. They then write
// the parts, and AddPackedPartsKernel adds them up in the same order. So the number of blocks
// changes no bit.

#include "kernels/cuda/product/packed_gemm.cuh"

namespace quire::kernels::cuda {

struct PackedBatchParams {
  PackedGemmParams product;
  int32_t parts_per_block;
  // [kPackedParts, tokens, rows] float32, times the kLaneScale of the type: where the parts are
  // written. Null: a block has all parts, and writes d.
  float* parts;
};

template <WeightType kType, int kTokenTiles_>
struct PackedBatchShape {
  using Format = PackedFormatOf<kType>;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kRowTiles = 2, kWarpRows = kGroupRows * kRowTiles;
  static constexpr int kTokenTiles = kTokenTiles_, kTokens = 8 * kTokenTiles;
  // A stage is, for each group of the block, a tile and its header, then the activations of the
  // tile, [tokens, 64 columns]. A row of these is 8 chunks of 16 bytes. Those of odd tokens are in
  // the place of their neighbours, so that neither copies nor loads have a bank conflict.
  static constexpr int kTileChunks = Format::kTileBytes / 16;
  static constexpr int kChunks = kTileChunks + Format::kHeaderBytes / 16;
  static constexpr int kWeightBytes = kWarps * kRowTiles * kChunks * 16;
  static constexpr int kRowBytes = kPackedTileCols * 2, kRowChunks = kRowBytes / 16;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kRowBytes;
  // As many as fit the 99 KiB of sm_86, but no more than 20 KiB of weights on their way need.
  static constexpr int kStages = std::min(4, (99 << 10) / kStageBytes);
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kCopiedTokens = kThreads / kRowChunks;  // by one copy of each thread
  static_assert(kRowTiles == 2 && kWarps * kWarpRows == kPackedBatchRows);
  static_assert(kStages >= 3 && kTokens % kCopiedTokens == 0);
};

// Grid: [blocks of 256 rows, blocks of the same rows].
template <typename T, WeightType kType, int kTokenTiles>
__global__ void __launch_bounds__(PackedBatchShape<kType, kTokenTiles>::kThreads)
    PackedBatchGemmKernel(const __grid_constant__ PackedBatchParams p) {
  using Shape = PackedBatchShape<kType, kTokenTiles>;
  using Format = PackedFormatOf<kType>;
  const PackedGemmParams& product = p.product;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  // Functions, so that ptxas computes them where they are used, with fewer registers.
  const auto row_of = [&](int r) {
    return blockIdx.x * kPackedBatchRows + warp * Shape::kWarpRows + r * kGroupRows;
  };
  const auto group_of = [&](int r) {
    // After the last group, the same group again: its sums are not stored.
    const int64_t group = std::min(row_of(r), product.rows - 1) / kGroupRows;
    return product.weight + group * Format::GroupBytes(product.cols);
  };
  const int32_t first_part = static_cast<int32_t>(blockIdx.y) * p.parts_per_block;
  const int32_t end_part = first_part + p.parts_per_block;
  const auto num_tiles = static_cast<int32_t>(Format::NumTiles(product.cols));
  const int32_t end_part_to_load = std::min(end_part, num_tiles);  // part p begins with tile p
  uint8_t* const stages = DynamicShared<uint8_t>();
  const auto next_stage = [&](uint8_t* stage) {
    stage += Shape::kStageBytes;
    return stage == stages + Shape::kSharedBytes ? stages : stage;
  };

  GridDependencyLaunch();

  const uint8_t* const group = group_of(0);
  const auto to_second_group = static_cast<int32_t>(group_of(1) - group);
  // This thread copies one chunk of the activations of some tokens.
  const int chunk = thread % Shape::kRowChunks, first_token = thread / Shape::kRowChunks;
  const int chunk_at =
      Shape::kWeightBytes + first_token * Shape::kRowBytes + (chunk ^ (first_token % 2)) * 16;
  const T* const activations =
      static_cast<const T*>(product.a) + first_token * product.lda + chunk * 8;
  int32_t part_to_load = first_part, tile_to_load = first_part;
  uint8_t* stage_to_load = stages;
  const auto load = [&] {
    if (part_to_load < end_part_to_load) {
      const auto tile_at = static_cast<int32_t>(Format::TileAt(tile_to_load));
      const auto header_at = static_cast<int32_t>(Format::HeaderAt(tile_to_load));
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        uint8_t* const to = stage_to_load + (warp * Shape::kRowTiles + r) * Shape::kChunks * 16;
#pragma unroll
        for (int first = 0; first < Shape::kChunks; first += 32) {
          const int i = first + lane;
          const int32_t from =
              i < Shape::kTileChunks ? tile_at + i * 16 : header_at + (i - Shape::kTileChunks) * 16;
          const uint8_t* const source = group + r * to_second_group + from;
          if (i < Shape::kChunks) CpAsync<16>(to + i * 16, source, true);
        }
      }
      const int32_t col = tile_to_load * kPackedTileCols;
#pragma unroll
      for (int token = 0; token < Shape::kTokens; token += Shape::kCopiedTokens) {
        const bool valid =
            first_token + token < product.num_tokens && col + chunk * 8 < product.cols;
        CpAsync<16>(stage_to_load + chunk_at + token * Shape::kRowBytes,
                    activations + token * product.lda + col, valid);
      }
    }
    CpAsyncCommit();
    tile_to_load += kPackedParts;
    if (tile_to_load >= num_tiles) tile_to_load = ++part_to_load;
    stage_to_load = next_stage(stage_to_load);
  };

  // Where a stage has the two chunks of this lane's columns, for token lane / 4. Eight tokens
  // further on, they are in the same places of a row.
  int activations_at[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = lane / 4, place = (lane % 4 * 2 + half) ^ (token % 2);
    activations_at[half] = Shape::kWeightBytes + token * Shape::kRowBytes + place * 16;
  }
  // Calls f(token, row, r, t, i) for each of this lane's sums that d has a place for.
  const auto for_each_sum = [&](auto f) {
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = t * 8 + lane % 4 * 2 + i % 2;
          const int64_t row = row_of(r) + lane / 4 + i / 2 * 8;
          if (token < product.num_tokens && row < product.rows) f(token, row, r, t, i);
        }
      }
    }
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) load();
  uint8_t* stage = stages;
  float totals[Shape::kRowTiles][kTokenTiles][4] = {};
  for (int32_t part = first_part; part < end_part; ++part) {
    float sums[Shape::kRowTiles][kTokenTiles][4] = {};
    for (int32_t tile = part; tile < num_tiles; tile += kPackedParts) {
      CpAsyncWait<Shape::kStages - 2>();
      __syncthreads();
      load();  // overwrites the stage of the previous tile, which all warps have read
      uint32_t fragments[Shape::kRowTiles][4][4];
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        LoadFragments<T, kType>(stage + (warp * Shape::kRowTiles + r) * Shape::kChunks * 16, lane,
                                fragments[r]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          const uint4 four = *reinterpret_cast<const uint4*>(stage + activations_at[half] +
                                                             t * (8 * Shape::kRowBytes));
#pragma unroll
          for (int r = 0; r < Shape::kRowTiles; ++r) {
            Mma<T>(sums[r][t], fragments[r][half * 2], four.x, four.y);
            Mma<T>(sums[r][t], fragments[r][half * 2 + 1], four.z, four.w);
          }
        }
      }
      stage = next_stage(stage);
    }
    if (p.parts != nullptr) {
      float* const to = p.parts + int64_t{part} * product.num_tokens * product.rows;
      for_each_sum([&](int token, int64_t row, int r, int t, int i) {
        to[token * product.rows + row] = sums[r][t][i];
      });
    } else {
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) totals[r][t][i] += sums[r][t][i];
        }
      }
    }
  }
  if (p.parts != nullptr) return;
  for_each_sum([&](int token, int64_t row, int r, int t, int i) {
    StorePackedProduct<T>(product, token, row, totals[r][t][i] * (1.0f / kLaneScale<T, kType>));
  });
}

struct AddPackedPartsParams {
  PackedGemmParams product;
  const float* parts;  // PackedBatchParams::parts
  float scale;         // 1 / kLaneScale of the type, a power of two
};

inline constexpr int kAddPartsThreads = 256;

// Grid: [blocks of rows, tokens].
template <typename T>
__global__ void __launch_bounds__(kAddPartsThreads)
    AddPackedPartsKernel(const __grid_constant__ AddPackedPartsParams p) {
  GridDependencyWait();
  const int64_t row = int64_t{blockIdx.x} * kAddPartsThreads + threadIdx.x;
  const int token = static_cast<int>(blockIdx.y);
  if (row >= p.product.rows) return;
  float sum = 0.0f;
#pragma unroll
  for (int part = 0; part < kPackedParts; ++part) {
    const int64_t at = int64_t{part} * p.product.num_tokens + token;
    sum += p.parts[at * p.product.rows + row];
  }
  StorePackedProduct<T>(p.product, token, row, sum * p.scale);
}

}  // namespace quire::kernels::cuda
