#pragma once

// The keys of an item: its tiles, and from the products of a tile to the scores of the keys that a
// row sees.

#include <algorithm>

#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/attention/attn_rows.cuh"
#include "kernels/cuda/attention/attn_softmax.cuh"

namespace quire::kernels::cuda {

// The tiles of an item. Tile 0 is the oldest. Items read theirs from the newest on.
template <bool kListed>
class ItemTiles {
 public:
  __device__ __forceinline__ ItemTiles(const SeenTile* tiles, const AttentionItem& item, int keys)
      : oldest_(kListed ? item.first_tile : item.key_begin / keys),
        count_(kListed ? item.num_tiles : (item.key_end - 1) / keys - oldest_ + 1),
        tiles_(tiles),
        keys_(keys) {}

  __device__ __forceinline__ int count() const { return count_; }
  // Returns the first key of the i-th tile.
  __device__ __forceinline__ int FirstKey(int i) const {
    return (kListed ? tiles_[oldest_ + i].tile : oldest_ + i) * keys_;
  }
  // Returns true if the list says that every row sees every key of the i-th tile.
  __device__ __forceinline__ bool IsWhole(int i) const { return tiles_[oldest_ + i].whole; }

 private:
  int oldest_, count_;
  const SeenTile* tiles_;
  int keys_;
};

// The keys that every row of an item sees, if the pattern has no holes. So only tiles with other
// keys need a mask. A tile may also contain keys outside [key_begin, key_end) of the item. No row
// of the item sees these keys, so the mask hides them too.
struct SeenByAll {
  int begin, end;

  template <typename T>
  __device__ __forceinline__ SeenByAll(const AttnParams<T>& p, const AttentionItem& item)
      : begin(static_cast<int>(p.pattern.FirstKey(item.first_position +
                                                  (item.first_row + item.num_rows - 1) / p.group))),
        end(item.first_position + item.first_row / p.group + 1) {}

  // Returns true if all keys of a tile are among them.
  __device__ __forceinline__ bool Contains(int tile_begin, int keys) const {
    return tile_begin >= begin && tile_begin + keys <= end;
  }
};

// Hides the keys of a tile that the lane's rows do not see. `lane_key` is the first key of the
// lane.
template <bool kListed, typename T, int kKeyTiles>
__device__ __forceinline__ void MaskTile(const AttnParams<T>& p, const LaneRows& rows,
                                         int tile_begin, int lane_key,
                                         float (&scores)[kKeyTiles][4]) {
  int first_seen[2], last_seen[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    first_seen[h] = rows.first_key[h] - lane_key;
    last_seen[h] = rows.position[h] - lane_key;
    if constexpr (kListed) {
      const bool sees_tile = p.pattern.SeesBlock(rows.position[h], tile_begin, rows.head[h]);
      first_seen[h] = sees_tile ? 0 : kKeyTiles * 8;
    }
  }
  MaskScores(first_seen, last_seen, scores);
}

// Turns the products of a tile into scores: soft cap, scale, ALiBi bias and, if `masked`, the mask.
// `lane_key` is the first key of the lane. With kSkipsBias, a branch leaves out the bias where
// there are no slopes.
template <bool kListed, bool kSkipsBias = false, typename T, int kKeyTiles>
__device__ __forceinline__ void BiasAndMask(const AttnParams<T>& p, const LaneRows& rows,
                                            int tile_begin, int lane_key, bool masked,
                                            float (&scores)[kKeyTiles][4]) {
  const bool capped = p.soft_cap > 0.0f;
  if (capped) CapScores(p.scale, p.soft_cap, scores);
  const float scale = capped ? 1.0f : p.scale;
  if (kSkipsBias && p.slopes == nullptr) {
    ScaleScores(scale, scores);
  } else {
    const int distance[2] = {lane_key - rows.position[0], lane_key - rows.position[1]};
    ScaleAndBiasScores(scale, rows.slope, distance, scores);
  }
  if (masked) MaskTile<kListed>(p, rows, tile_begin, lane_key, scores);
}

}  // namespace quire::kernels::cuda
