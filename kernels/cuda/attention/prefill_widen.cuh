#pragma once

// How the third warpgroup fetches the tiles of an item from a cache of E4M3: all of its threads
// copy codes by cp.async, and widen them into the stages of keys and values.

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/attention/attn_keys.cuh"
#include "kernels/cuda/attention/fp8_tiles.cuh"
#include "kernels/cuda/attention/prefill_params.h"
#include "kernels/cuda/attention/prefill_shape.cuh"

namespace quire::kernels::cuda {

// T is the type of the elements that are multiplied.
template <typename T, typename Shape>
class WideningFetcher {
 public:
  static constexpr int kWarps = kAttnThreads / 32;  // that fetch
  // The slots of codes, each of a tile of keys or of values.
  static constexpr int kSlots = Shape::kHeadDim <= 128 ? 4 : 2;
  static constexpr int kSharedBytes = kSlots * Shape::kTileBytes / 2;

  __device__ __forceinline__ WideningFetcher(const PrefillParams<T>& params,
                                             PrefillShared<Shape>& shared)
      : params_(params.attn),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x) - kPrefillConsumers) {}

  // Fetches the tiles of `item`, each as soon as its stage is empty. All threads of the warpgroup
  // must call this function.
  __device__ __forceinline__ void Fetch(const AttentionItem& item) {
    const ItemTiles<false> tiles(nullptr, item, Shape::kKeys);
    const Codes codes(params_, item, thread_, reinterpret_cast<uint4*>(&shared_ + 1));
    const int last = tiles.count() - 1;
    // Parts of tiles: the keys of the newest tile, its values, the keys of the tile before it.
    const auto copy = [&](int part) {
      const int tile = last - part / 2;
      codes.Copy(tiles.FirstKey(std::max(tile, 0)), part % kSlots, tile >= 0,
                 /*values=*/part % 2 == 1);
    };
    // Loops are not unrolled, because the thread has few registers.
#pragma unroll 1
    for (int part = 0; part < kSlots; ++part) copy(part);
#pragma unroll 1
    for (int part = 0; part < 2 * tiles.count(); ++part) {
      const bool values = part % 2 == 1;
      // A fresh stage counts as just emptied.
      MbarrierWait(values ? &shared_.values_empty[stage_.index] : &shared_.keys_empty[stage_.index],
                   stage_.parity ^ 1);
      CpAsyncWait<kSlots - 1>();
      unsigned char* const tile =
          values ? shared_.values[stage_.index] : shared_.keys[stage_.index];
      codes.template Widen<T>(part % kSlots, [&](int, int row, int offset, int chunk) {
        return TileChunk(tile + offset * 128, Shape::kKeys, row, chunk);
      });
      FenceAsyncProxy();
      __syncwarp();
      if (thread_ % 32 == 0) {
        MbarrierArrive(values ? &shared_.values_full[stage_.index]
                              : &shared_.keys_full[stage_.index]);
      }
      copy(part + kSlots);
      if (values) stage_.Advance();
    }
  }

 private:
  using Codes = CodeTiles<Shape::kHeadDim, Shape::kKeys, /*kParts=*/1>;
  static_assert(kSharedBytes == kSlots * Codes::kSlotBytes);

  const AttnParams<T>& params_;
  PrefillShared<Shape>& shared_;
  const int thread_;
  TileStage<Shape::kStages> stage_;
};

}  // namespace quire::kernels::cuda
