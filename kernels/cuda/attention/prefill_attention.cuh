#pragma once

// Attention of chunks of prompts over the paged cache, as an sm_90a GPU wants it: a warp fetches by
// TMA, and two warpgroups multiply with wgmma.
//
// From a cache of E4M3, a warpgroup fetches (prefill_widen.cuh), and what the others multiply are
// elements of T as with a cache of 16 bits.
//
// The work items, their parameters and their results are those of AttnKernel (paged_attention.cuh);
// an item has up to 128 rows. So the same plan and the same merge serve both kernels. As there,
// keys are processed from the newest to the oldest.
//
// The products with the keys of one tile are issued before the products with the values of the tile
// before it, and the softmax of a tile runs while the latter are in flight (FlashAttention-3,
// arXiv:2407.08608). The warp that fetches runs ahead of both, into the block's next item too.

#include <type_traits>

#include "kernels/cuda/attention/attn_keys.cuh"
#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/attention/attn_rows.cuh"
#include "kernels/cuda/attention/attn_shape.cuh"
#include "kernels/cuda/attention/attn_softmax.cuh"
#include "kernels/cuda/attention/prefill_fetch.cuh"
#include "kernels/cuda/attention/prefill_products.cuh"
#include "kernels/cuda/attention/prefill_shape.cuh"
#include "kernels/cuda/attention/prefill_widen.cuh"
#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

// Copies the queries of a warpgroup to shared memory. Rows past the end of the item become zeros.
template <typename T, typename Shape>
__device__ __forceinline__ void LoadQueryTile(const AttnParams<T>& p, const AttentionItem& item,
                                              int warpgroup, unsigned char* query) {
  constexpr int kChunks = Shape::kHeadDim / 8;
  const int64_t first_token = p.query_starts[item.seq];
  // The wgmmas of all four warps have read the queries of the item before.
  NamedBarrier(1 + warpgroup, 128);
  // Not unrolled: cp.async needs no more than one address at a time, and waits for none of them.
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 128; i < 64 * kChunks; i += 128) {
    const int row = warpgroup * 64 + i / kChunks, chunk = i % kChunks;
    const bool valid = row < item.num_rows;
    const QueryAndHead of(p, item, item.first_row + (valid ? row : 0));
    const int64_t place = (first_token + of.query) * p.num_heads + of.head;
    CpAsync<16>(TileChunk(query, Shape::kRows, row, chunk),
                p.query + place * Shape::kHeadDim + chunk * 8, valid);
  }
  CpAsyncCommit();
  CpAsyncWait<0>();
  FenceAsyncProxy();
  NamedBarrier(1 + warpgroup, 128);
}

// Processes one work item. All threads of both consumer warpgroups must call this function.
template <typename T, typename Cache, typename Shape>
__device__ __forceinline__ void AttendPrefillItem(const AttnParams<T>& p, const AttentionItem& item,
                                                  PrefillShared<Shape>& shared,
                                                  TileStage<Shape::kStages>& stage,
                                                  ConsumerTurns<Shape>& turns) {
  const AttnPlace<Shape> at;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const unsigned char* const query = shared.query + warpgroup * 64 * 128;
  LoadQueryTile<T, Shape>(p, item, warpgroup, shared.query);
  const ItemTiles<false> tiles(nullptr, item, Shape::kKeys);
  const LaneRows rows(p, item, at.row());
  const SeenByAll seen_by_all(p, item);

  float out[Shape::kColumnTiles][4] = {}, scores[Shape::kKeyTiles][4], rescale[2];
  uint32_t weights[Shape::kKeyTiles / 2][4];
  OnlineSoftmax softmax;
  // From the products of the i-th tile to its weights.
  const auto weigh = [&](int i) {
    const int tile_begin = tiles.FirstKey(i);
    BiasAndMask<false, /*kSkipsBias=*/true>(p, rows, tile_begin, tile_begin + at.column(),
                                            !seen_by_all.Contains(tile_begin, Shape::kKeys),
                                            scores);
    softmax.Weigh(scores, rescale);
  };

  MbarrierWait(&shared.keys_full[stage.index], stage.parity);
  WgmmaFence();
  IssueScores<T, Shape>(query, shared.keys[stage.index], scores);
  WgmmaWait<0>();
  if (at.lane == 0) MbarrierArrive(&shared.keys_empty[stage.index]);
  weigh(tiles.count() - 1);
  PackWeights<T>(scores, weights);
  for (int i = tiles.count() - 2; i >= 0; --i) {
    const TileStage<Shape::kStages> before = stage;
    stage.Advance();
    MbarrierWait(&shared.keys_full[stage.index], stage.parity);
    turns.Wait();
    WgmmaFence();
    IssueScores<T, Shape>(query, shared.keys[stage.index], scores);
    MbarrierWait(&shared.values_full[before.index], before.parity);
    WgmmaFence();
    IssueWeightedValues<T, Shape>(weights, shared.values[before.index], out);
    turns.Pass(at.lane);
    WgmmaWait<1>();
    if (at.lane == 0) MbarrierArrive(&shared.keys_empty[stage.index]);
    weigh(i);
    WgmmaWait<0>();
    if (at.lane == 0) MbarrierArrive(&shared.values_empty[before.index]);
    Rescale(rescale, out);
    PackWeights<T>(scores, weights);
  }
  MbarrierWait(&shared.values_full[stage.index], stage.parity);
  WgmmaFence();
  IssueWeightedValues<T, Shape>(weights, shared.values[stage.index], out);
  WgmmaWait<0>();
  if (at.lane == 0) MbarrierArrive(&shared.values_empty[stage.index]);
  stage.Advance();
  softmax.SumOfLanes();
  if constexpr (!std::is_same_v<Cache, T>) {
    const float factor[2] = {p.value_factor, p.value_factor};
    Rescale(factor, out);
  }
  StoreRows(p, item, at, softmax, out);
}

// The class that fetches tiles from a cache with elements of Cache. Its shared memory follows
// PrefillShared.
template <typename T, typename Cache, typename Shape>
using PrefillFetcher =
    std::conditional_t<std::is_same_v<Cache, T>, TileFetcher<T, Shape>, WideningFetcher<T, Shape>>;

// Returns the shared memory of a block.
template <typename T, typename Cache, int kHeadDim>
constexpr int64_t PrefillSharedBytes() {
  using Shape = PrefillShape<kHeadDim>;
  static_assert(sizeof(PrefillShared<Shape>) % 16 == 0);
  return static_cast<int64_t>(sizeof(PrefillShared<Shape>)) +
         PrefillFetcher<T, Cache, Shape>::kSharedBytes;
}

// Processes the work items of the block. Cache is the type of the cache's elements: T, or E4M3.
template <typename T, int kHeadDim, typename Cache>
__device__ __forceinline__ void AttendPrefillItems(const PrefillParams<T>& params) {
  using Shape = PrefillShape<kHeadDim>;
  using Fetcher = PrefillFetcher<T, Cache, Shape>;
  const AttnParams<T>& p = params.attn;
  PrefillShared<Shape>& shared = *DynamicShared<PrefillShared<Shape>>();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
#pragma unroll
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      MbarrierInit(&shared.keys_full[stage], Fetcher::kWarps);
      MbarrierInit(&shared.values_full[stage], Fetcher::kWarps);
      MbarrierInit(&shared.keys_empty[stage], kPrefillConsumers / 32);
      MbarrierInit(&shared.values_empty[stage], kPrefillConsumers / 32);
    }
    MbarrierInit(&shared.turns[0], 4);
    MbarrierInit(&shared.turns[1], 4);
    FenceMbarrierInit();
  }
  __syncthreads();
  if (thread >= kPrefillConsumers) {
    ShrinkRegisters<56>();
    // Written so that the compiler knows it of all four warps, and no register waits for a branch.
    if (thread / 32 % 4 < Fetcher::kWarps) {
      Fetcher fetcher(params, shared);
      const int last_item = p.block_starts[blockIdx.x + 1];
      for (int i = p.block_starts[blockIdx.x]; i < last_item; ++i) fetcher.Fetch(p.items[i]);
    }
  } else {
    GrowRegisters<224>();
    TileStage<Shape::kStages> stage;
    ConsumerTurns<Shape> turns(shared, thread / 128);
    const int last_item = p.block_starts[blockIdx.x + 1];
    for (int i = p.block_starts[blockIdx.x]; i < last_item; ++i) {
      const AttentionItem item = p.items[i];
      AttendPrefillItem<T, Cache>(p, item, shared, stage, turns);
    }
  }
  GridDependencyLaunch();
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    PrefillAttnKernel(const __grid_constant__ PrefillParams<T> params) {
  AttendPrefillItems<T, kHeadDim, T>(params);
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    Fp8PrefillAttnKernel(const __grid_constant__ PrefillParams<T> params) {
  AttendPrefillItems<T, kHeadDim, E4M3>(params);
}

}  // namespace quire::kernels::cuda
