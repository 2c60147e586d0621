#pragma once

// Attention of many query tokens over the paged cache, in the form that suits a Hopper GPU. One
// thread fetches keys and values by TMA, and two warpgroups multiply with wgmma. The kernel tests
// the mbarriers, TMA and wgmma of the emulator until such a kernel is part of the library.
//
// A row is a pair of a query token and a head of one KV group. A block processes 128 packed rows.
// Keys come in tiles of 128, newest first, so that only the first two tiles can need the causal
// mask. The head_dim is 128, and elements are bf16.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/primitives.cuh"

namespace quire::testing {

struct PrefillWork {
  int sequence;
  int kv_head;
  // The first of the block's 128 rows, as an index into the packed rows of the sequence and KV
  // head.
  int first_row;
};

struct PrefillParams {
  // [num_blocks][2][num_kv_heads][block_size][head_dim], with the innermost dimension last.
  kernels::cuda::TensorMap kv_cache;
  const kernels::cuda::Bf16* query;  // [num_tokens, num_heads, head_dim]
  kernels::cuda::Bf16* out;
  const int* block_table;   // [num_seqs, max_blocks_per_seq]
  const int* query_starts;  // [num_seqs + 1]
  const int* context_lens;  // [num_seqs]
  const PrefillWork* work;  // one for each block
  const float* alibi_slopes;
  int num_heads;
  int max_blocks_per_seq;
  float scale;
};

inline constexpr int kPrefillHeadDim = 128;
inline constexpr int kPrefillRows = 128;
inline constexpr int kPrefillKeys = 128;
inline constexpr int kPrefillStages = 2;
inline constexpr int kPrefillThreads = 384;
// The 128-byte swizzle covers 64 elements of a row. So a tile consists of two halves, each with 128
// rows of 128 bytes.
inline constexpr int kHalfTileBytes = 128 * 128;
inline constexpr int kTileBytes = 2 * kHalfTileBytes;
inline constexpr int kPrefillSharedBytes =
    (1 + 2 * kPrefillStages) * kTileBytes + 4 * kPrefillStages * 8;

// The shared memory of a block.
struct PrefillShared {
  unsigned char query[kTileBytes];
  unsigned char keys[kPrefillStages][kTileBytes];
  unsigned char values[kPrefillStages][kTileBytes];
  uint64_t keys_full[kPrefillStages];
  uint64_t values_full[kPrefillStages];
  uint64_t keys_empty[kPrefillStages];
  uint64_t values_empty[kPrefillStages];
};
static_assert(sizeof(PrefillShared) == kPrefillSharedBytes);

// The rows and keys that a block processes, computed from the block's PrefillWork.
struct PrefillTile {
  int sequence, kv_head, first_row;
  int first_token;  // the row of `query` where the sequence begins
  int query_len, context_len;
  int num_rows;   // the packed rows of the sequence
  int num_tiles;  // the tiles of keys that some row of this block sees
};

template <int kGroup>
__device__ PrefillTile PrefillTileOf(const PrefillParams& p) {
  PrefillTile tile;
  const PrefillWork work = p.work[blockIdx.x];
  tile.sequence = work.sequence;
  tile.kv_head = work.kv_head;
  tile.first_row = work.first_row;
  tile.first_token = p.query_starts[work.sequence];
  tile.query_len = p.query_starts[work.sequence + 1] - tile.first_token;
  tile.context_len = p.context_lens[work.sequence];
  tile.num_rows = tile.query_len * kGroup;
  const int last_token = (std::min(tile.first_row + kPrefillRows, tile.num_rows) - 1) / kGroup;
  const int num_keys = tile.context_len - tile.query_len + last_token + 1;
  tile.num_tiles = (num_keys + kPrefillKeys - 1) / kPrefillKeys;
  return tile;
}

// Fetches all tiles of keys and values, each into the next stage that becomes free. One thread of
// the block calls this.
template <int kBlockSize>
__device__ void FetchTiles(const PrefillParams& p, const PrefillTile& tile, PrefillShared& shared) {
  using namespace kernels::cuda;
  const int* const blocks = p.block_table + int64_t{tile.sequence} * p.max_blocks_per_seq;
  const int num_blocks = (tile.context_len + kBlockSize - 1) / kBlockSize;
  for (int i = 0; i < tile.num_tiles; ++i) {
    const int first_block = (tile.num_tiles - 1 - i) * (kPrefillKeys / kBlockSize);
    const int stage = i % kPrefillStages;
    const int parity = (i / kPrefillStages + 1) & 1;  // a fresh stage counts as just emptied
    for (int value = 0; value < 2; ++value) {
      uint64_t* const full = &(value ? shared.values_full : shared.keys_full)[stage];
      uint64_t* const empty = &(value ? shared.values_empty : shared.keys_empty)[stage];
      unsigned char* const target = (value ? shared.values : shared.keys)[stage];
      MbarrierWait(empty, parity);
      MbarrierArriveExpect(full, kTileBytes);
      for (int b = 0; b < kPrefillKeys / kBlockSize; ++b) {
        // Block -1 is outside the pool, so TMA fills the block's part of the tile with zeros.
        const int block = first_block + b < num_blocks ? blocks[first_block + b] : -1;
        for (int half = 0; half < 2; ++half) {
          TmaLoad(target + half * kHalfTileBytes + b * kBlockSize * 128, p.kv_cache, full,
                  {half * 64, 0, tile.kv_head, value, block});
        }
      }
    }
  }
}

// Returns the address of 16 bytes of a tile in shared memory: eight elements of row `row`, from
// element 8 * chunk on.
__device__ inline unsigned char* TileChunk(unsigned char* tile, int row, int chunk) {
  return tile + chunk / 8 * kHalfTileBytes + row * 128 + ((chunk % 8) ^ (row & 7)) * 16;
}

// Returns the index of a packed row's first element in `query` and `out`.
template <int kGroup>
__device__ int64_t RowOffset(const PrefillParams& p, const PrefillTile& tile, int row) {
  return (int64_t{tile.first_token + row / kGroup} * p.num_heads + tile.kv_head * kGroup +
          row % kGroup) *
         kPrefillHeadDim;
}

template <int kGroup>
__device__ void LoadQuery(const PrefillParams& p, const PrefillTile& tile, int warpgroup,
                          int thread, PrefillShared& shared) {
  using namespace kernels::cuda;
  for (int i = thread; i < 64 * 16; i += 128) {
    const int row = warpgroup * 64 + i / 16, chunk = i % 16;
    uint4 elements = make_uint4(0, 0, 0, 0);
    if (tile.first_row + row < tile.num_rows) {
      elements = LoadReadOnly<uint4>(p.query + RowOffset<kGroup>(p, tile, tile.first_row + row) +
                                     chunk * 8);
    }
    StoreVector(TileChunk(shared.query, row, chunk), elements);
  }
  FenceAsyncProxy();
  NamedBarrier(1 + warpgroup, 128);
}

template <int kGroup, bool kAlibi>
__device__ void AttendTiles(const PrefillParams& p, const PrefillTile& tile, int warpgroup,
                            int thread, PrefillShared& shared) {
  using namespace kernels::cuda;
  constexpr float kLog2E = 1.44269504f;
  constexpr unsigned kAllLanes = 0xffffffffu;
  // In a 64 x 128 tile, this thread holds the elements whose row is `row` or `row` + 8 and whose
  // column is `col` or `col` + 1 of any group of 8 columns.
  const int row = thread / 32 * 16 + thread % 32 / 4, col = thread % 4 * 2;
  int packed_row[2], position[2];
  float slope[2] = {};
  for (int h = 0; h < 2; ++h) {
    packed_row[h] = tile.first_row + warpgroup * 64 + row + h * 8;
    const bool valid = packed_row[h] < tile.num_rows;
    position[h] = valid ? tile.context_len - tile.query_len + packed_row[h] / kGroup : -1;
    if (kAlibi && valid) {
      slope[h] = p.alibi_slopes[tile.kv_head * kGroup + packed_row[h] % kGroup] * kLog2E;
    }
  }
  const float scale = p.scale * kLog2E;

  float sums[64] = {}, max[2] = {-INFINITY, -INFINITY}, total[2] = {};
  for (int i = 0; i < tile.num_tiles; ++i) {
    const int first_key = (tile.num_tiles - 1 - i) * kPrefillKeys;
    const int stage = i % kPrefillStages, parity = i / kPrefillStages & 1;

    float scores[64];
    MbarrierWait(&shared.keys_full[stage], parity);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int offset = k / 4 * kHalfTileBytes + k % 4 * 32;
      WgmmaShared<Bf16>(scores,
                        WgmmaDescriptor(shared.query + warpgroup * 64 * 128 + offset, 16, 1024),
                        WgmmaDescriptor(shared.keys[stage] + offset, 16, 1024), k > 0);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    if (thread == 0) MbarrierArrive(&shared.keys_empty[stage]);

    float new_max[2] = {max[0], max[1]}, base[2];
#pragma unroll
    for (int j = 0; j < 64; ++j) {
      const int h = j >> 1 & 1, key = first_key + j / 4 * 8 + col + (j & 1);
      float score = scores[j] * scale;
      if constexpr (kAlibi) score += slope[h] * static_cast<float>(key - position[h]);
      scores[j] = key <= position[h] ? score : -INFINITY;
      new_max[h] = fmaxf(new_max[h], scores[j]);
    }
    float correction[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      new_max[h] = fmaxf(new_max[h], __shfl_xor_sync(kAllLanes, new_max[h], 1));
      new_max[h] = fmaxf(new_max[h], __shfl_xor_sync(kAllLanes, new_max[h], 2));
      base[h] = new_max[h] == -INFINITY ? 0.0f : new_max[h];
      correction[h] = Exp2(max[h] - base[h]);
      max[h] = new_max[h];
      total[h] *= correction[h];
    }
    // Packs all weights before the first wgmma. If a thread wrote operands of a wgmma while another
    // was in flight, the compiler would serialize the wgmmas.
    uint32_t weights[8][4];
#pragma unroll
    for (int j = 0; j < 64; ++j) {
      const int h = j >> 1 & 1;
      scores[j] = Exp2(scores[j] - base[h]);
      total[h] += scores[j];
      sums[j] *= correction[h];
    }
#pragma unroll
    for (int j = 0; j < 32; ++j)
      weights[j / 4][j % 4] = Pack2<Bf16>(scores[2 * j], scores[2 * j + 1]);

    MbarrierWait(&shared.values_full[stage], parity);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      WgmmaRegisters<Bf16>(
          sums, weights[k],
          WgmmaDescriptor(shared.values[stage] + k * 16 * 128, kHalfTileBytes, 1024));
    }
    WgmmaCommit();
    WgmmaWait<0>();
    if (thread == 0) MbarrierArrive(&shared.values_empty[stage]);
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] += __shfl_xor_sync(kAllLanes, total[h], 1);
    total[h] += __shfl_xor_sync(kAllLanes, total[h], 2);
    if (packed_row[h] >= tile.num_rows) continue;
    const float inverse = 1.0f / total[h];
    Bf16* const out = p.out + RowOffset<kGroup>(p, tile, packed_row[h]) + col;
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      StoreVector(out + n * 8,
                  Pack2<Bf16>(sums[n * 4 + h * 2] * inverse, sums[n * 4 + h * 2 + 1] * inverse));
    }
  }
}

template <int kGroup, int kBlockSize, bool kAlibi>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    HopperPrefillKernel(const __grid_constant__ PrefillParams p) {
  using namespace kernels::cuda;
  PrefillShared& shared = *DynamicShared<PrefillShared>();
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / 128;
  const PrefillTile tile = PrefillTileOf<kGroup>(p);
  if (thread == 0) {
    for (int stage = 0; stage < kPrefillStages; ++stage) {
      MbarrierInit(&shared.keys_full[stage], 1);
      MbarrierInit(&shared.values_full[stage], 1);
      MbarrierInit(&shared.keys_empty[stage], 2);  // one arrival of each warpgroup that multiplies
      MbarrierInit(&shared.values_empty[stage], 2);
    }
    FenceMbarrierInit();
  }
  __syncthreads();
  if (warpgroup == 2) {
    ShrinkRegisters<24>();
    if (thread == 256) FetchTiles<kBlockSize>(p, tile, shared);
  } else {
    GrowRegisters<240>();
    LoadQuery<kGroup>(p, tile, warpgroup, thread % 128, shared);
    AttendTiles<kGroup, kAlibi>(p, tile, warpgroup, thread % 128, shared);
  }
}

}  // namespace quire::testing
