#pragma once

// Work items of attention. The plan of a step (attention_plan.h) makes them, and the attention
// kernels read them.

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "kernels/ops/attention_pattern.h"

namespace quire::kernels::cuda {

// The host copies these structs to the device as bytes, so kernels read them in this layout.
struct AttentionItem {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t key_begin = 0;
  int32_t key_end = 0;
  // The position of the first query that the sequence has in this step.
  int32_t first_position = 0;
  // The first row of this item's partial results, or -1 if the item writes its output itself, which
  // a whole unit does, but not with a fixed split (attention_plan.h).
  int32_t partial = -1;
  // The item reads the keys in [key_begin, key_end). If num_tiles is not 0, it reads only those in
  // the listed tiles [first_tile, first_tile + num_tiles) of the plan.
  int32_t first_tile = 0;
  int32_t num_tiles = 0;
  // If not -1, several sequences read the keys of the item (shared_units.h). Query i of its rows is
  // then the entry first_member + i of the plan's members, and `seq` is one of these sequences.
  int32_t first_member = -1;
};
// The ranges of items that blocks of one launch draw (attn_ranges.cuh). All zeros between launches.
struct AttentionQueue {
  int32_t num_drawn = 0;
  int32_t num_left = 0;  // blocks that found no range left
};
// A query that reads keys together with queries of other sequences.
struct SharedMember {
  int32_t token = 0;  // its row in the step's queries
  int32_t position = 0;
};
struct AttentionMerge {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t partial = 0;    // first partial row of the first item
  int32_t num_items = 0;  // the partial rows of the items are adjacent, num_rows each
  // The results of the same rows for shared keys: those of the first item, how many items there
  // are, and how many partial rows each of them has.
  int32_t shared_partial = 0;
  int32_t num_shared_items = 0;
  int32_t shared_rows = 0;
};

// The possible numbers of row tiles with which AttnKernel (paged_attention.cuh) processes an item.
// A row tile has up to 16 rows.
inline constexpr int32_t kAttentionRowTiles[] = {1, 2, 4, 8};
// The most rows of an item of AttnKernel: of a decode, or where there are no wide items, and of a
// wide item.
inline constexpr int32_t kMostItemRows = 64;
inline constexpr int32_t kMostWideItemRows = 128;
// The row tiles of an item of PrefillAttnKernel (prefill_attention.cuh), which processes chunks of
// prompts on devices that have it.
inline constexpr int32_t kPrefillRowTiles = 8;

// Returns the smallest element of kAttentionRowTiles whose tiles hold the rows of an item. Heads
// wider than 128 need at least two row tiles: with one, each of the four warps of a block would get
// only 8 of the 32 keys of a tile, and a warp needs 16 (AttnShape).
constexpr int32_t ItemRowTiles(int32_t num_rows, int32_t head_dim) {
  if (num_rows <= 16 && head_dim <= 128) return 1;
  return num_rows <= 32 ? 2 : num_rows <= kMostItemRows ? 4 : 8;
}

// Returns true if there are items of more than kMostItemRows rows (attn_wide.cuh), if the pattern
// has no holes. At larger head_dims, the output of two row tiles does not fit in the registers of a
// warp.
constexpr bool HasWideItems(int64_t head_dim) { return head_dim <= 128; }

// Returns the number of keys that a thread block of AttnKernel loads as one tile. Wide heads have
// fewer keys per tile, so that all pipeline stages fit into shared memory, and the scores into
// registers.
constexpr int32_t AttentionTileKeys(int32_t head_dim) { return head_dim > 128 ? 32 : 64; }
// As AttentionTileKeys, for PrefillAttnKernel.
constexpr int32_t PrefillTileKeys(int32_t head_dim) { return 2 * AttentionTileKeys(head_dim); }
// The fewest tiles in the range of a block, unless all units are shorter. Shorter ranges would keep
// more blocks busy, but the merge would cost more than they save (FlashAttention-3 has the same
// minimum).
inline constexpr int32_t kMinRangeTiles = 4;

// The pieces into which a fixed split cuts a run of tiles: at each multiple of piece_tiles.
struct FixedPieces {
  int32_t count = 0;
  int32_t first_cut = 0;  // tiles from the begin of the run to the second piece
};

// Returns those of the tiles [first, first + num_tiles), which must not be empty.
constexpr FixedPieces CutAtMultiples(int32_t first, int32_t num_tiles, int32_t piece_tiles) {
  const int32_t first_piece = first / piece_tiles;
  return {.count = (first + num_tiles - 1) / piece_tiles - first_piece + 1,
          .first_cut = (first_piece + 1) * piece_tiles - first};
}

// The tiles of keys that each unit of one sequence of a decode step reads.
struct DecodeTiles {
  int32_t position = 0;  // of the query
  int32_t key_begin = 0;
  int32_t first = 0;
  int32_t count = 0;
};

// Returns those of a sequence of `context_len` keys, if tiles have `tile_keys` keys.
constexpr DecodeTiles TilesOfDecode(const AttentionPattern& pattern, int32_t context_len,
                                    int32_t tile_keys) {
  const int32_t position = context_len - 1;
  const auto key_begin = static_cast<int32_t>(pattern.FirstKey(position));
  const int32_t first = key_begin / tile_keys;
  return {.position = position,
          .key_begin = key_begin,
          .first = first,
          .count = position / tile_keys + 1 - first};
}

// The units of each sequence of a decode step. The rows of a unit are heads of one KV group.
struct DecodeUnits {
  int32_t num_kv_heads = 0;
  int32_t group = 0;      // heads of a KV group
  int32_t most_rows = 0;  // of a unit

  constexpr int32_t chunks() const { return base::CeilDiv(group, most_rows); }  // of a KV group
  constexpr int32_t per_seq() const { return num_kv_heads * chunks(); }
  // Returns the rows of the largest unit.
  constexpr int32_t rows() const { return std::min(group, most_rows); }
};

}  // namespace quire::kernels::cuda
