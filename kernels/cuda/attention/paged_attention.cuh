#pragma once

// Paged attention with mma.sync (sm_80 and up), for both decodes and chunks of prompts.
//
// A block has four warps. It processes the work items that the plan (attention_plan.h) assigns to
// the block. cp.async copies the keys and values of an item to shared memory in tiles
// (attn_tiles.cuh). A warp keeps 16 rows of Q, their scores and their output in registers.
//
// An item has up to 1, 2, 4 or 8 tiles of 16 rows (ItemRowTiles). The kernel has code of its own
// for each of these sizes, so that one launch processes all items of a step:
//   1: all four warps have the same rows. Each takes a quarter of the keys of every tile.
//   2: two warps have the same rows. Each takes half of the keys of every tile.
//   4: each warp has different rows and takes all keys of every tile.
//   8: the same with two row tiles a warp (attn_wide.cuh).
// Warps that have the same rows add up their results in shared memory at the end of an item.
//
// Each instance exists with and without lists of tiles. With lists, an item reads the tiles that
// the plan lists for it, and a row sees all keys of a tile up to its own position, or none of them.
//
// Keys are processed from the newest to the oldest, so that the key with the largest ALiBi bias
// comes first. Masks are needed only at the two ends of an item, and in the listed tiles that are
// not whole. The ALiBi bias is slope * (key - query) in float32. Since it is relative to the
// position of the query, it loses no digits in a long context.
//
// resources.tsv has the instructions that a warp executes for a tile without a mask and soft cap.

#include "kernels/cuda/attention/attn_exchange.cuh"
#include "kernels/cuda/attention/attn_horizon.cuh"
#include "kernels/cuda/attention/attn_keys.cuh"
#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/attention/attn_products.cuh"
#include "kernels/cuda/attention/attn_ranges.cuh"
#include "kernels/cuda/attention/attn_rows.cuh"
#include "kernels/cuda/attention/attn_softmax.cuh"
#include "kernels/cuda/attention/attn_tiles.cuh"
#include "kernels/cuda/attention/attn_wide.cuh"
#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

// The keys that items read: all of their ranges, the tiles that the plan lists, or those within the
// horizon.
enum class AttnKeys { kAll, kListed, kNear };

// Processes one work item. All threads of the block must call this function. Cache is the type of
// the cache's elements: T, or E4M3.
template <typename T, int kHeadDim, int kRowTiles, AttnKeys kKeysRead, typename Cache>
__device__ __forceinline__ void AttendItem(const AttnParams<T>& p, AttentionItem item) {
  using Shape = AttnShape<kHeadDim, kRowTiles, sizeof(Cache)>;
  using Products = AttnProducts<T, Cache, Shape>;
  constexpr int kKeys = Shape::kKeys, kStages = Shape::kStages;
  constexpr bool kListed = kKeysRead == AttnKeys::kListed;
  const AttnPlace<Shape> at;
  if constexpr (kKeysRead == AttnKeys::kNear) item = WithinHorizon<T, Shape>(p, at, item);
  const ItemTiles<kListed> tiles(p.tiles, item, kKeys);
  const TileLoader<Cache, Shape> loader(p, item, at.thread);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    const int tile = tiles.count() - 1 - i;
    if (tile >= 0) loader.Load(tiles.FirstKey(tile), i, /*wanted=*/true);
    CpAsyncCommit();
  }

  const LaneRows rows(p, item, at.row());
  Products products;
  uint32_t q[Shape::kDepthSteps][4];
  products.LoadQueries(p.query, rows, at, q);
  const SeenByAll seen_by_all(p, item);

  float out[Shape::kProductTiles][4] = {};
  OnlineSoftmax softmax;
  int stage = 0, free_stage = kStages - 1;
  for (int i = tiles.count() - 1; i >= 0; --i) {
    CpAsyncWait<kStages - 2>();
    __syncthreads();
    const int next = i - (kStages - 1);
    loader.Load(tiles.FirstKey(std::max(next, 0)), free_stage, next >= 0);
    CpAsyncCommit();
    const Cache* const k_tile = StageOfTiles<Cache, Shape>(stage);
    float scores[Shape::kKeyTiles][4];
    products.MultiplyQueriesByKeys(q, k_tile, at, scores);

    const int tile_begin = tiles.FirstKey(i);
    const bool masked = kListed ? !tiles.IsWhole(i) : !seen_by_all.Contains(tile_begin, kKeys);
    BiasAndMask<kListed>(p, rows, tile_begin, tile_begin + at.first_key() + at.column(), masked,
                         scores);
    float rescale[2];
    softmax.Weigh(scores, rescale);
    Rescale(rescale, out);
    products.AddWeightedValues(scores, k_tile + Shape::kTileElements, at, out);
    free_stage = stage;
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }
  // After this barrier, the memory of the tiles is reused: first for the exchange between warps,
  // then for the next item. No load into this memory is in flight, because the copy groups
  // committed after the last tile are empty.
  __syncthreads();
  softmax.SumOfLanes();
  float columns[Shape::kColumnTiles][2 * Shape::kLaneColumns];
  products.GetOutput(p.value_factor, out, columns);
  if constexpr (Shape::kWarpsForKeys > 1) {
    float own[Shape::kOwnColumnTiles][2 * Shape::kLaneColumns];
    AddUpWarps(at, softmax, columns, own);
    StoreRows(p, item, at, softmax, own);
  } else {
    StoreRows(p, item, at, softmax, columns);
  }
}

// Processes the work items of the block. No register keeps a word of them for later, because the
// loops over tiles of keys need almost all registers.
template <typename T, int kHeadDim, AttnKeys kKeysRead, typename Cache>
__device__ __forceinline__ void AttendItems(const AttnParams<T>& p) {
  constexpr bool kWide = HasWideItems(kHeadDim) && kKeysRead == AttnKeys::kAll;
  ForEachItem<kKeysRead == AttnKeys::kNear>(p, [&](int i) {
    const int row_tiles = ItemRowTiles(p.items[i].num_rows, kHeadDim);
    if (kWide && row_tiles == 8) {
      if constexpr (kWide) AttendWideItem<T, kHeadDim, Cache>(p, i);
    } else if (row_tiles == 4) {
      AttendItem<T, kHeadDim, 4, kKeysRead, Cache>(p, p.items[i]);
    } else if (kHeadDim > 128 || row_tiles == 2) {
      AttendItem<T, kHeadDim, 2, kKeysRead, Cache>(p, p.items[i]);
    } else if constexpr (kHeadDim <= 128) {
      AttendItem<T, kHeadDim, 1, kKeysRead, Cache>(p, p.items[i]);
    }
  });
  GridDependencyLaunch();
}

template <typename T, int kHeadDim, bool kListed>
__global__ void __launch_bounds__(kAttnThreads, 2)
    AttnKernel(const __grid_constant__ AttnParams<T> p) {
  AttendItems<T, kHeadDim, kListed ? AttnKeys::kListed : AttnKeys::kAll, T>(p);
}

}  // namespace quire::kernels::cuda
