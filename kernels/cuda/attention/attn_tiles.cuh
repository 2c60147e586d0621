#pragma once

// The tiles of keys and values in shared memory, and how a block copies them there.
//
// A stage holds one tile of K, then one tile of V. A row of a tile is one key. Its 16-byte chunks
// are swizzled.

#include <algorithm>
#include <bit>
#include <cstddef>

#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/attention/attn_shape.cuh"

namespace quire::kernels::cuda {

// Returns the position within a row at which a 16-byte chunk is stored. The swizzle prevents bank
// conflicts: ldmatrix reads the same chunk of eight rows at once, and the swizzle puts these eight
// chunks into different banks. It depends on the row modulo 8 only.
//
// All banks together are 128 bytes wide. Modulo 128 bytes, rows start at only 8 / kPlaces different
// offsets. Therefore the xor changes after every 8 / kPlaces rows, and takes kPlaces different
// values.
template <int kChunks>  // of a row
__device__ __forceinline__ int SwizzledChunk(int row, int chunk) {
  constexpr int kPlaces = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  return chunk ^ (row / (8 / kPlaces) % kPlaces);
}

template <typename T, typename Shape>
__device__ __forceinline__ T* StageOfTiles(int stage) {
  return DynamicShared<T>() + stage * 2 * Shape::kTileElements;
}

// Copies tiles of one item. T is the type of the cache's elements. A thread copies the same chunk
// of several rows, which are kRowsApart rows apart. So its addresses differ by constants within the
// 16 keys that share a block of the cache. If the chunks of a row are not a power of two, some
// threads of each row copy nothing.
template <typename T, typename Shape>
struct TileLoader {
  static constexpr int kHeadDim = Shape::kHeadDim;
  static constexpr int kChunks = Shape::kChunks;
  static constexpr int kChunkElements = 16 / Shape::kElementBytes;
  static constexpr int kThreadsPerRow = static_cast<int>(std::bit_ceil(unsigned{kChunks}));
  static constexpr int kRowsApart = kAttnThreads / kThreadsPerRow;
  static constexpr int kRowsPerLookup = std::max(16, kRowsApart);
  static constexpr int kLookups = Shape::kKeys / kRowsPerLookup;

  int thread;            // of the block
  const int32_t* table;  // the blocks of the item's sequence
  const T* keys;         // of the item's head in block 0
  uint32_t block_bytes;  // from one block of the cache to the next
  int64_t value_offset;  // from a key to its value
  int log2_block_size;
  int key_begin, key_end;  // of the item

  template <typename Query>
  __device__ __forceinline__ TileLoader(const AttnParams<Query>& p, const AttentionItem& item,
                                        int thread_of_block)
      : thread(thread_of_block),
        table(p.block_table + int64_t{item.seq} * p.max_blocks),
        keys(static_cast<const T*>(p.kv) + item.kv_head * p.head_stride),
        block_bytes(p.block_bytes),
        value_offset(p.value_offset),
        log2_block_size(p.log2_block_size),
        key_begin(item.key_begin),
        key_end(item.key_end) {}

  // If `wanted`, copies the tile whose first key is `tile_begin`. Rows outside [key_begin, key_end)
  // become zeros: their blocks may be gone, and their weights of 0 must not meet NaN.
  //
  // If not `wanted`, looks blocks up and copies nothing. The condition is a predicate of each copy,
  // because ptxas leaves a loop with a branch around the copies by one more branch.
  __device__ __forceinline__ void Load(int tile_begin, int stage, bool wanted) const {
    wanted = wanted && chunk() < kChunks;
    uint32_t block[kLookups];
    LookUp(tile_begin, block);
    T* const tile = StageOfTiles<T, Shape>(stage) + row() * kHeadDim;
#pragma unroll
    for (int i = 0; i < kLookups; ++i) {
      const int first_row = i * kRowsPerLookup;
      const int key = tile_begin + row() + first_row;
      const T* const from = Place(key, block[i]);
#pragma unroll
      for (int j = 0; j < kRowsPerLookup; j += kRowsApart) {
        T* const to = tile + (first_row + j) * kHeadDim +
                      SwizzledChunk<kChunks>(row() + j % 8, chunk()) * kChunkElements;
        CpAsyncIf(wanted, to, from + j * kHeadDim, IsValid(key + j));
        CpAsyncIf(wanted, to + Shape::kTileElements, from + value_offset + j * kHeadDim,
                  IsValid(key + j));
      }
    }
  }

  // The first row of a tile that the thread copies, and its chunk of a row.
  __device__ __forceinline__ int row() const { return thread / kThreadsPerRow; }
  __device__ __forceinline__ int chunk() const { return thread % kThreadsPerRow; }

  // Looks up the blocks of the thread's rows: of row(), and of every kRowsPerLookup-th one after
  // it.
  __device__ __forceinline__ void LookUp(int tile_begin, uint32_t (&block)[kLookups]) const {
    // All lookups come first, so that they wait for memory together. Past the last key, the table
    // may end.
#pragma unroll
    for (int i = 0; i < kLookups; ++i) {
      const int key = tile_begin + row() + i * kRowsPerLookup;
      block[i] = static_cast<uint32_t>(table[std::min(key, key_end - 1) >> log2_block_size]);
    }
  }

  // Returns where the thread's chunk of `key` is. The next keys of the block follow it.
  __device__ __forceinline__ const T* Place(int key, uint32_t block) const {
    const auto slot = static_cast<uint32_t>(key) & ((1u << log2_block_size) - 1);
    const auto* const in_block_0 =
        reinterpret_cast<const std::byte*>(keys + chunk() * kChunkElements + slot * kHeadDim);
    return reinterpret_cast<const T*>(in_block_0 + uint64_t{block} * block_bytes);
  }

  __device__ __forceinline__ bool IsValid(int key) const {
    return key >= key_begin && key < key_end;
  }
};

}  // namespace quire::kernels::cuda
