#pragma once

// The sizes of one instance of AttnKernel (paged_attention.cuh), and the place of a thread in them.

#include <algorithm>

#include "kernels/cuda/attention/attention_items.h"
#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

inline constexpr int kAttnThreads = 128;

// `kCacheBytes` are those of an element of the cache.
template <int kHeadDimension, int kRowTileCount, int kCacheBytes = 2>
struct AttnShape {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kDepthSteps = kHeadDimension / 16;  // products with 16 dimensions of a head
  static constexpr int kElementBytes = kCacheBytes;
  static constexpr int kChunks = kHeadDimension * kCacheBytes / 16;  // of 16 bytes, of a key
  static constexpr int kProductTiles = kHeadDimension / 8;  // products have 8 columns of the output
  // A lane's adjacent columns of the output. Four lanes have the columns of a tile.
  static constexpr int kLaneColumns = 4 / kCacheBytes;
  static constexpr int kColumnTiles = kHeadDimension / (4 * kLaneColumns);
  static constexpr int kWarpsForRows = kRowTileCount;
  static constexpr int kWarpsForKeys = 4 / kRowTileCount;
  static constexpr int kRows = 16 * kRowTileCount;
  static constexpr int kKeys = AttentionTileKeys(kHeadDimension);
  static constexpr int kWarpKeys = kKeys / kWarpsForKeys;
  static constexpr int kKeyTiles = kWarpKeys / 8;  // tiles of 8 keys of a warp
  static constexpr int kStages = 3;
  static constexpr int kTileElements = kKeys * kHeadDimension;
  // At the end of an item, the memory holds the results of all warps (attn_exchange.cuh): 64 rows
  // of floats. All instances of a head_dim and a type of cache need the same memory.
  static constexpr int kSharedBytes = std::max(kStages * 2 * kTileElements * kCacheBytes,
                                               64 * (kHeadDimension + 4 * kLaneColumns + 2) * 4);
  // A warp stores every kWarpsForKeys-th column tile. Some warps have one fewer than others.
  static constexpr int kOwnColumnTiles = (kColumnTiles + kWarpsForKeys - 1) / kWarpsForKeys;
  static constexpr bool HasColumnTile(int tile) {
    return kColumnTiles % kWarpsForKeys == 0 || tile < kColumnTiles;
  }
  static_assert(kHeadDimension % 16 == 0 && kWarpKeys % 16 == 0);
};

// Adjacent columns of one row of the output.
template <int kCount>
struct alignas(4 * kCount) LaneFloats {
  float at[kCount];
};

// The place of a thread. A lane has two rows, eight rows apart, of the fragments of a row tile. It
// has two adjacent columns of each product of 8 columns, and kLaneColumns of each tile of the
// output.
template <typename Shape>
struct AttnPlace {
  // Opaque, so that what follows from it is computed anew for each item, and no register holds it
  // while the block processes an item of another size.
  int thread = Opaque(static_cast<int>(threadIdx.x));
  int lane = thread % 32;
  int row_warp = thread / 32 % Shape::kWarpsForRows;
  int key_warp = thread / 32 / Shape::kWarpsForRows;

  // The first row of the lane, among the rows of an item.
  __device__ __forceinline__ int row() const { return row_warp * 16 + lane / 4; }
  // The first column of the lane in a product of 8 columns.
  __device__ __forceinline__ int column() const { return lane % 4 * 2; }
  // The first column of the lane in a column tile of the output.
  __device__ __forceinline__ int out_column() const { return lane % 4 * Shape::kLaneColumns; }
  // The first key of the warp in a tile of keys.
  __device__ __forceinline__ int first_key() const { return key_warp * Shape::kWarpKeys; }
};

}  // namespace quire::kernels::cuda
