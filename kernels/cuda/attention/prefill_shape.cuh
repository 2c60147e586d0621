#pragma once

// The sizes of one instance of PrefillAttnKernel (prefill_attention.cuh), and its shared memory.
//
// A tile in shared memory (staged_tiles.cuh) is a matrix of rows of kHeadDim elements.

#include "kernels/cuda/attention/attention_items.h"
#include "kernels/cuda/device/primitives.cuh"
#include "kernels/cuda/device/staged_tiles.cuh"

namespace quire::kernels::cuda {

inline constexpr int kPrefillConsumers = 256;

// Has the members of AttnShape that attn_rows.cuh and AttnPlace use. So the rows of a consumer warp
// and the fragments of a lane are those of AttnKernel: wgmma gives a warp 16 rows of the 64 of its
// warpgroup, in the layout of mma.sync.
template <int kHeadDimension>
struct PrefillShape {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kLaneColumns = 2;
  static constexpr int kColumnTiles = kHeadDim / 8;
  static constexpr int kDepthSteps = kHeadDim / 16;  // products with 16 dimensions of a head
  static constexpr int kRows = 16 * kPrefillRowTiles;
  static constexpr int kWarpsForRows = kPrefillRowTiles;
  static constexpr int kWarpsForKeys = 1;
  static constexpr int kKeys = PrefillTileKeys(kHeadDim);
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kStages = 2;
  static constexpr int kPieces = kHeadDim / 64;
  static constexpr int kTileBytes = kKeys * kHeadDim * 2;
  static constexpr int kOwnColumnTiles = kColumnTiles;
  static constexpr bool HasColumnTile(int) { return true; }
  static_assert(kHeadDim % 64 == 0 && kRows * 2 == kPrefillConsumers);
};

// The shared memory of a block. Each stage of keys and of values has a barrier that completes when
// TMA has filled it, and one that completes when all consumer warps have read it.
template <typename Shape>
struct PrefillShared {
  unsigned char query[Shape::kRows * Shape::kHeadDim * 2];
  unsigned char keys[Shape::kStages][Shape::kTileBytes];
  unsigned char values[Shape::kStages][Shape::kTileBytes];
  uint64_t keys_full[Shape::kStages], keys_empty[Shape::kStages];
  uint64_t values_full[Shape::kStages], values_empty[Shape::kStages];
  uint64_t turns[2];  // of each consumer warpgroup
};

// The turns of the consumer warpgroups: one issues its products of a tile, then the other. So the
// softmax of one overlaps with the products of the other (FlashAttention-3, arXiv:2407.08608). Both
// take as many turns. At head_dim 256 there are no turns, as in FlashAttention-3's kernels.
template <typename Shape>
class ConsumerTurns {
 public:
  static constexpr bool kTaken = Shape::kHeadDim <= 128;

  __device__ __forceinline__ ConsumerTurns(PrefillShared<Shape>& shared, int warpgroup)
      : own_(&shared.turns[warpgroup]),
        other_(&shared.turns[1 - warpgroup]),
        parity_(1 - warpgroup) {}

  __device__ __forceinline__ void Wait() {
    if constexpr (kTaken) MbarrierWait(own_, parity_);
    parity_ ^= 1;
  }
  __device__ __forceinline__ void Pass(int lane) const {
    if constexpr (kTaken) {
      if (lane == 0) MbarrierArrive(other_);
    }
  }

 private:
  uint64_t* const own_;
  uint64_t* const other_;
  int parity_;  // of the phase that the other warpgroup completes; the first one is the turn of 0
};

}  // namespace quire::kernels::cuda
