#pragma once

// How one warp fetches the tiles of keys and values of an item.
//
// Each lane fetches one box of a tile by TMA: 64 elements of the keys of one block, or of one tile
// if a block is larger. Boxes without a key that the sequence sees become zeros, because their
// blocks may be gone. A block may also begin before the first key that the sequence sees, or end
// after its last one, and hold NaN there. Scores of such keys are masked, but their values would
// meet weights of 0, and 0 times NaN is NaN. So threads copy the values of these blocks, with zeros
// in the place of the others.

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/attention/attn_keys.cuh"
#include "kernels/cuda/attention/prefill_params.h"
#include "kernels/cuda/attention/prefill_shape.cuh"

namespace quire::kernels::cuda {

// Returns the number of keys in a box.
template <typename Shape>
__device__ __host__ constexpr int PrefillBoxKeys(int block_size) {
  return block_size < Shape::kKeys ? block_size : Shape::kKeys;
}

template <typename T, typename Shape>
class TileFetcher {
 public:
  static constexpr int kWarps = 1;  // that fetch
  static constexpr int kSharedBytes = 0;

  __device__ __forceinline__ TileFetcher(const PrefillParams<T>& params,
                                         PrefillShared<Shape>& shared)
      : params_(params),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % 32),
        box_keys_(PrefillBoxKeys<Shape>(1 << params.attn.log2_block_size)) {}

  // Fetches the tiles of `item`, each as soon as its stage is empty. All lanes must call this
  // function.
  __device__ __forceinline__ void Fetch(const AttentionItem& item) {
    const AttnParams<T>& p = params_.attn;
    const ItemTiles<false> tiles(nullptr, item, Shape::kKeys);
    const Sequence sequence(p, item);
    for (int i = tiles.count() - 1; i >= 0; --i, stage_.Advance()) {
      const int tile_begin = tiles.FirstKey(i);
      const Box box = BoxOfLane(sequence, tile_begin);
      // A fresh stage counts as just emptied.
      MbarrierWait(&shared_.keys_empty[stage_.index], stage_.parity ^ 1);
      if (lane_ == 0) MbarrierArriveExpect(&shared_.keys_full[stage_.index], Shape::kTileBytes);
      __syncwarp();
      Load(params_.keys, shared_.keys[stage_.index], &shared_.keys_full[stage_.index], box);

      MbarrierWait(&shared_.values_empty[stage_.index], stage_.parity ^ 1);
      int bytes = Shape::kTileBytes;
#pragma unroll 1
      for (int end = 0; end < 2; ++end) {
        const int key = end == 0 ? sequence.cut_box[0] : sequence.cut_box[1];
        if (key < tile_begin || key >= tile_begin + Shape::kKeys) continue;
        CopyValues(sequence, tile_begin, key);
        bytes -= box_keys_ * Shape::kHeadDim * 2;
      }
      __syncwarp();
      if (lane_ == 0) MbarrierArriveExpect(&shared_.values_full[stage_.index], bytes);
      __syncwarp();
      if (box.key != sequence.cut_box[0] && box.key != sequence.cut_box[1]) {
        Load(params_.values, shared_.values[stage_.index], &shared_.values_full[stage_.index], box);
      }
    }
  }

 private:
  static constexpr int kNone = -1;

  // The sequence of an item, and the keys that its queries of this step see.
  struct Sequence {
    const int32_t* table;
    int kv_head;
    int first_key, end_key;
    // The first keys of the boxes that hold some of the seen keys, but not only them; kNone where
    // there is none.
    int cut_box[2];

    __device__ __forceinline__ Sequence(const AttnParams<T>& p, const AttentionItem& item)
        : table(p.block_table + int64_t{item.seq} * p.max_blocks),
          kv_head(item.kv_head),
          first_key(static_cast<int>(p.pattern.FirstKey(item.first_position))),
          end_key(item.first_position + p.query_starts[item.seq + 1] - p.query_starts[item.seq]) {
      const int box_keys = PrefillBoxKeys<Shape>(1 << p.log2_block_size);
      const int first = first_key % box_keys, last = end_key % box_keys;
      cut_box[0] = first != 0 ? first_key - first : kNone;
      cut_box[1] = last != 0 && end_key - last != cut_box[0] ? end_key - last : kNone;
    }
  };

  // The box that a lane fetches.
  struct Box {
    bool exists;
    int key;     // the first one
    int block;   // -1 is outside the cache, so TMA writes zeros
    int column;  // the first element of the key
    int row;     // of the block, over all KV heads
    int place;   // bytes from the begin of the tile
  };

  __device__ __forceinline__ Box BoxOfLane(const Sequence& sequence, int tile_begin) const {
    const AttnParams<T>& p = params_.attn;
    const int piece = lane_ % Shape::kPieces;
    const int tile_row = lane_ / Shape::kPieces * box_keys_;
    Box box = {.exists = tile_row < Shape::kKeys,
               .key = tile_begin + tile_row,
               .block = -1,
               .column = piece * 64,
               .row = 0,
               .place = (piece * Shape::kKeys + tile_row) * 128};
    const int slot = box.key & ((1 << p.log2_block_size) - 1);
    box.row = (sequence.kv_head << p.log2_block_size) + slot;
    if (box.exists && box.key < sequence.end_key && box.key + box_keys_ > sequence.first_key) {
      box.block = sequence.table[box.key >> p.log2_block_size];
    }
    return box;
  }

  __device__ __forceinline__ void Load(const TensorMap& map, unsigned char* tile, uint64_t* full,
                                       const Box& box) const {
    if (box.exists) TmaLoad(tile + box.place, map, full, {box.column, box.row, box.block});
  }

  // Copies the values of the box whose first key is `box_key`.
  __device__ __forceinline__ void CopyValues(const Sequence& sequence, int tile_begin,
                                             int box_key) const {
    constexpr int kChunks = Shape::kHeadDim / 8;
    const AttnParams<T>& p = params_.attn;
    const int slot = box_key & ((1 << p.log2_block_size) - 1);
    const auto* const block =
        static_cast<const std::byte*>(p.kv) +
        uint64_t{static_cast<uint32_t>(sequence.table[box_key >> p.log2_block_size])} *
            p.block_bytes;
    const T* const values = reinterpret_cast<const T*>(block) + p.value_offset +
                            sequence.kv_head * p.head_stride + slot * Shape::kHeadDim;
#pragma unroll 1
    for (int i = lane_; i < box_keys_ * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks, key = box_key + row;
      CpAsync<16>(TileChunk(shared_.values[stage_.index], Shape::kKeys, key - tile_begin, chunk),
                  values + row * Shape::kHeadDim + chunk * 8,
                  key >= sequence.first_key && key < sequence.end_key);
    }
    CpAsyncCommit();
    CpAsyncWait<0>();
    FenceAsyncProxy();
  }

  const PrefillParams<T>& params_;
  PrefillShared<Shape>& shared_;
  const int lane_;
  const int box_keys_;
  TileStage<Shape::kStages> stage_;
};

}  // namespace quire::kernels::cuda
