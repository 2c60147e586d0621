#pragma once

// Paged attention with mma.sync (sm_80 and up), for both decodes and chunks of prompts.
//
// A block has four warps. It processes the work items that the plan (attention_plan.h) assigns to
// the block. cp.async copies the keys and values of an item to shared memory in tiles. Each stage
// holds one tile of K and one tile of V. A warp keeps 16 rows of Q, their scores and their output
// in registers.
//
// Each instance of the kernel processes items of up to 1, 2 or 4 tiles of 16 rows:
//   1: all four warps have the same rows. Each takes a quarter of the keys of every tile.
//   2: two warps have the same rows. Each takes half of the keys of every tile.
//   4: each warp has different rows and takes all keys of every tile.
// Warps that have the same rows add up their results in shared memory at the end of an item.
//
// Each instance exists with and without lists of tiles. With lists, an item reads the tiles that
// the plan lists for it, and a row sees all keys of a tile up to its own position, or none of them.
//
// Keys are processed from the newest to the oldest, so that the key with the largest ALiBi bias
// comes first. Masks are needed only at the two ends of an item, and in the listed tiles that are
// not whole. Scores are multiplied by log2(e), so that the weights are powers of 2. The ALiBi bias
// is slope * (key - query) in float32. Since it is relative to the position of the query, it loses
// no digits in a long context.

#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/attn_merge.cuh"
#include "kernels/cuda/primitives.cuh"
#include "kernels/ops/attention_tiles.h"

namespace quire::kernels::cuda {

template <typename T>
struct AttnParams {
  T* out;          // [num_tokens, num_heads, head_dim]
  const T* query;  // shape of out
  const T* kv;     // [num_blocks, 2, num_kv_heads, block_size, head_dim], blocks block_stride apart
  const int32_t* block_table;   // [num_seqs, max_blocks]
  const int32_t* query_starts;  // [num_seqs + 1]
  const float* slopes;          // [num_heads]; null: no ALiBi
  const float* sinks;           // [num_heads]; null: no sinks
  const AttentionItem* items;
  const int32_t* block_starts;
  const SeenTile* tiles;
  float* partial_out;
  float* partial_lse;
  int64_t block_stride, value_offset, head_stride;  // elements
  int num_heads, group, log2_block_size, max_blocks;
  AttentionPattern pattern;
  float scale;     // the op's scale times log2(e); with a soft cap, the op's scale / soft_cap
  float soft_cap;  // 0: no soft cap
};

// The sizes of one instance of the kernel.
template <int kHeadDimension, int kRowTileCount>
struct AttnShape {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kWarpsForRows = kRowTileCount;
  static constexpr int kWarpsForKeys = 4 / kRowTileCount;
  static constexpr int kRows = 16 * kRowTileCount;
  static constexpr int kKeys = AttentionTileKeys(kHeadDimension);
  static constexpr int kWarpKeys = kKeys / kWarpsForKeys;
  static constexpr int kStages = 3;
  static constexpr int kChunks = kHeadDimension / 8;  // 16-byte chunks in a row
  static constexpr int kTileElements = kKeys * kHeadDimension;
  static constexpr int kSharedBytes = kStages * 2 * kTileElements * 2;
  static_assert(kHeadDimension % 16 == 0 && kWarpKeys % 16 == 0);
  // Warps with the same rows exchange their results in the memory of the tiles. The results must
  // fit.
  static_assert(4 * 16 * (kHeadDimension + 2) * 4 <= kSharedBytes);
};

inline constexpr int kAttnThreads = 128;

// Returns the position within a row at which a 16-byte chunk is stored. The swizzle prevents bank
// conflicts: ldmatrix reads the same chunk of eight rows at once, and the swizzle puts these eight
// chunks into different banks.
//
// All banks together are 128 bytes wide. Modulo 128 bytes, rows start at only 8 / kPlaces different
// offsets. Therefore the xor changes after every 8 / kPlaces rows, and takes kPlaces different
// values.
template <int kChunks>
__device__ __forceinline__ int SwizzledChunk(int row, int chunk) {
  constexpr int kPlaces = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  return chunk ^ (row / (8 / kPlaces) % kPlaces);
}

template <typename T, int kHeadDim, int kRowTiles, bool kListed>
__global__ void __launch_bounds__(kAttnThreads, 2)
    AttnKernel(const __grid_constant__ AttnParams<T> p) {
  using Shape = AttnShape<kHeadDim, kRowTiles>;
  constexpr int kKeys = Shape::kKeys, kChunks = Shape::kChunks, kStages = Shape::kStages;
  constexpr int kDepthSteps = kHeadDim / 16, kColumnTiles = kHeadDim / 8;
  constexpr int kKeyTiles = Shape::kWarpKeys / 8;
  T* const k_stages = DynamicShared<T>();
  T* const v_stages = k_stages + kStages * Shape::kTileElements;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int row_warp = thread / 32 % Shape::kWarpsForRows;
  const int key_warp = thread / 32 / Shape::kWarpsForRows;
  const int first_warp_key = key_warp * Shape::kWarpKeys;
  const int lane_row = lane / 4, lane_col = lane % 4 * 2;

  const int last_item = p.block_starts[blockIdx.x + 1];
  for (int i_item = p.block_starts[blockIdx.x]; i_item < last_item; ++i_item) {
    const AttentionItem item = p.items[i_item];
    const int32_t* const table = p.block_table + int64_t{item.seq} * p.max_blocks;
    const T* const head_kv = p.kv + item.kv_head * p.head_stride;
    const int oldest_tile = item.key_begin / kKeys;
    const int newest_tile = (item.key_end - 1) / kKeys;
    const int num_tiles = kListed ? item.num_tiles : newest_tile - oldest_tile + 1;
    // Returns the first key of the tile that is read in a step.
    const auto tile_key = [&](int step) {
      if constexpr (kListed) {
        return p.tiles[item.first_tile + num_tiles - 1 - step].tile * kKeys;
      } else {
        return (newest_tile - step) * kKeys;
      }
    };

    const auto load = [&](int step) {
      T* const k_tile = k_stages + step % kStages * Shape::kTileElements;
      T* const v_tile = v_stages + step % kStages * Shape::kTileElements;
      const int tile_begin = tile_key(step);
// Unrolled only twice: fully unrolled, the addresses would need so many registers that the output
// would spill.
#pragma unroll 2
      for (int i = 0; i < kKeys * kChunks / kAttnThreads; ++i) {
        const int row = (i * kAttnThreads + thread) / kChunks;
        const int chunk = (i * kAttnThreads + thread) % kChunks;
        const int key = tile_begin + row;
        const bool valid = key >= item.key_begin && key < item.key_end;
        int64_t from = 0;
        if (valid) {
          const int slot = key & ((1 << p.log2_block_size) - 1);
          from = table[key >> p.log2_block_size] * p.block_stride + slot * kHeadDim + chunk * 8;
        }
        const int to = row * kHeadDim + SwizzledChunk<kChunks>(row, chunk) * 8;
        CpAsync<16>(k_tile + to, head_kv + from, valid);
        CpAsync<16>(v_tile + to, head_kv + p.value_offset + from, valid);
      }
    };
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < num_tiles) load(step);
      CpAsyncCommit();
    }

    // Each lane has two rows, which are eight rows apart.
    const int first_row = item.first_row + row_warp * 16 + lane_row;
    const int end_row = item.first_row + item.num_rows;
    const int64_t first_token = p.query_starts[item.seq];
    const T* row_query[2];
    int position[2];
    int first_key[2];  // the first key that the row sees
    float slope[2];
    int row_head[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Rows past the end of the item repeat the last row. Their results are not stored.
      const int row = std::min(first_row + h * 8, end_row - 1);
      const int query = row / p.group;
      const int64_t head = item.kv_head * p.group + (row - query * p.group);
      row_query[h] = p.query + ((first_token + query) * p.num_heads + head) * kHeadDim;
      position[h] = item.first_position + query;
      first_key[h] = static_cast<int>(p.pattern.FirstKey(position[h]));
      row_head[h] = static_cast<int>(head);
      slope[h] = p.slopes != nullptr ? p.slopes[head] * kLog2E : 0.0f;
    }
    uint32_t q[kDepthSteps][4];
#pragma unroll
    for (int k = 0; k < kDepthSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[k][i] = LoadReadOnly<uint32_t>(row_query[i % 2] + k * 16 + lane_col + i / 2 * 8);
      }
    }
    // Every row sees the keys [common_begin, common_end), so only tiles with other keys need a
    // mask. A tile may also contain keys outside [key_begin, key_end) of the item. No row of the
    // item sees these keys, so the mask hides them too.
    const int last_position = item.first_position + (end_row - 1) / p.group;
    const int common_begin = static_cast<int>(p.pattern.FirstKey(last_position));
    const int common_end = item.first_position + item.first_row / p.group + 1;

    float o[kColumnTiles][4] = {};
    float maximum[2] = {-INFINITY, -INFINITY};
    float sum[2] = {};
    for (int step = 0; step < num_tiles; ++step) {
      CpAsyncWait<kStages - 2>();
      __syncthreads();
      if (step + kStages - 1 < num_tiles) load(step + kStages - 1);
      CpAsyncCommit();
      const T* const k_tile = k_stages + step % kStages * Shape::kTileElements;
      const T* const v_tile = v_stages + step % kStages * Shape::kTileElements;

      float s[kKeyTiles][4] = {};
#pragma unroll
      for (int k = 0; k < kDepthSteps; ++k) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; n += 2) {
          const int row = first_warp_key + n * 8 + lane % 8 + lane / 16 * 8;
          uint32_t b[4];
          LdMatrix(b,
                   k_tile + row * kHeadDim + SwizzledChunk<kChunks>(row, k * 2 + lane / 8 % 2) * 8);
          Mma<T>(s[n], q[k], b[0], b[1]);
          Mma<T>(s[n + 1], q[k], b[2], b[3]);
        }
      }

      const int tile_begin = tile_key(step);
      bool masked = tile_begin < common_begin || tile_begin + kKeys > common_end;
      bool sees_block[2] = {true, true};
      if constexpr (kListed) {
        masked = !p.tiles[item.first_tile + num_tiles - 1 - step].whole;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          sees_block[h] = p.pattern.SeesBlock(position[h], tile_begin, row_head[h]);
        }
      }
      const int lane_key = tile_begin + first_warp_key + lane_col;
      float tile_maximum[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int distance = lane_key + n * 8 + i % 2 - position[i / 2];  // <= 0 if seen
          float x = s[n][i] * p.scale;
          if (p.soft_cap > 0.0f) {
            // Computes tanh(x) from e^(2x). tanh.approx has an error of 2^-11, and the cap would
            // multiply this error.
            x = p.soft_cap * kLog2E * (1.0f - 2.0f / (1.0f + Exp2(2.0f * kLog2E * x)));
          }
          x += slope[i / 2] * static_cast<float>(distance);
          if (masked) {
            const int key = lane_key + n * 8 + i % 2;
            const bool seen =
                distance <= 0 && (kListed ? sees_block[i / 2] : key >= first_key[i / 2]);
            x = seen ? x : -INFINITY;
          }
          s[n][i] = x;
          tile_maximum[i / 2] = fmaxf(tile_maximum[i / 2], x);
        }
      }
      float rescale[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float m = tile_maximum[h];
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const float before = maximum[h];
        maximum[h] = fmaxf(before, m);
        // If a row has seen no key yet, its maximum is -infinity. Then 0 is subtracted from the
        // scores instead, so that all weights are 0 and none is NaN.
        tile_maximum[h] = maximum[h] == -INFINITY ? 0.0f : maximum[h];
        rescale[h] = Exp2(before - tile_maximum[h]);
        sum[h] *= rescale[h];
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] = Exp2(s[n][i] - tile_maximum[i / 2]);
          sum[i / 2] += s[n][i];
        }
      }
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[c][i] *= rescale[i / 2];
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        const uint32_t weights[4] = {Pack2<T>(s[n][0], s[n][1]), Pack2<T>(s[n][2], s[n][3]),
                                     Pack2<T>(s[n + 1][0], s[n + 1][1]),
                                     Pack2<T>(s[n + 1][2], s[n + 1][3])};
#pragma unroll
        for (int c = 0; c < kColumnTiles; c += 2) {
          const int row = first_warp_key + n * 8 + lane % 16;
          uint32_t b[4];
          LdMatrixTransposed(
              b, v_tile + row * kHeadDim + SwizzledChunk<kChunks>(row, c + lane / 16) * 8);
          Mma<T>(o[c], weights, b[0], b[1]);
          Mma<T>(o[c + 1], weights, b[2], b[3]);
        }
      }
    }
    // After this barrier, the memory of the tiles is reused: first for the exchange between warps,
    // then for the next item. No load into this memory is in flight, because the copy groups
    // committed after the last tile are empty.
    __syncthreads();
    GridDependencyLaunch();

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
    }
    if constexpr (Shape::kWarpsForKeys > 1) {
      // Layout: the outputs [key warp][row of the item][head_dim], then all maxima, then all sums.
      float* const shared_o = DynamicShared<float>();
      float* const shared_maximum = shared_o + 64 * kHeadDim;
      float* const shared_sum = shared_maximum + 64;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = key_warp * Shape::kRows + row_warp * 16 + lane_row + h * 8;
        if (lane % 4 == 0) {
          shared_maximum[row] = maximum[h];
          shared_sum[row] = sum[h];
        }
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
          StoreVector(shared_o + row * kHeadDim + c * 8 + lane_col,
                      make_float2(o[c][h * 2], o[c][h * 2 + 1]));
        }
      }
      __syncthreads();
      // Each key warp adds up the results of all key warps with the same rows, for its own part of
      // the columns.
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_warp * 16 + lane_row + h * 8;
        float m = -INFINITY;
#pragma unroll
        for (int w = 0; w < Shape::kWarpsForKeys; ++w) {
          m = fmaxf(m, shared_maximum[w * Shape::kRows + row]);
        }
        const float subtract = m == -INFINITY ? 0.0f : m;
        float weight[Shape::kWarpsForKeys];
        sum[h] = 0.0f;
#pragma unroll
        for (int w = 0; w < Shape::kWarpsForKeys; ++w) {
          weight[w] = Exp2(shared_maximum[w * Shape::kRows + row] - subtract);
          sum[h] += weight[w] * shared_sum[w * Shape::kRows + row];
        }
        maximum[h] = m;
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
          if (c % Shape::kWarpsForKeys != key_warp) continue;
          float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
          for (int w = 0; w < Shape::kWarpsForKeys; ++w) {
            const auto x = *reinterpret_cast<const float2*>(
                shared_o + (w * Shape::kRows + row) * kHeadDim + c * 8 + lane_col);
            total.x += weight[w] * x.x;
            total.y += weight[w] * x.y;
          }
          o[c][h * 2] = total.x;
          o[c][h * 2 + 1] = total.y;
        }
      }
      __syncthreads();
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + h * 8;
      if (row >= end_row) continue;
      const int query = row / p.group;
      const int64_t head = item.kv_head * p.group + (row - query * p.group);
      float weight = 1.0f;
      if (item.partial < 0 && p.sinks != nullptr) {
        const float sink = p.sinks[head] * kLog2E;
        const float m = fmaxf(maximum[h], sink);
        weight = Exp2(maximum[h] - m);
        sum[h] = sum[h] * weight + Exp2(sink - m);
      }
      const float inverse = sum[h] > 0.0f ? weight / sum[h] : 0.0f;
      const int64_t partial_row = int64_t{item.partial} + (row - item.first_row);
      const int64_t out_row = (first_token + query) * p.num_heads + head;
      // This offset includes the column of the lane. If the column were added to the pointers
      // instead, each pointer would occupy two registers during the whole item, and the output
      // would spill.
      const int64_t to = (item.partial < 0 ? out_row : partial_row) * kHeadDim + lane_col;
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        if (c % Shape::kWarpsForKeys != key_warp) continue;
        const float x = o[c][h * 2] * inverse, y = o[c][h * 2 + 1] * inverse;
        if (item.partial < 0) {
          StoreVector(p.out + (to + c * 8), Pack2<T>(x, y));
        } else {
          StoreVector(p.partial_out + (to + c * 8), make_float2(x, y));
        }
      }
      if (item.partial >= 0 && key_warp == 0 && lane % 4 == 0) {
        p.partial_lse[partial_row] = sum[h] > 0.0f ? maximum[h] + Log2(sum[h]) : -INFINITY;
      }
    }
  }
}

}  // namespace quire::kernels::cuda
