#pragma once

// Work items of attention. The plan of a step (attention_plan.h) makes them, and the attention
// kernels read them.

#include <cstdint>

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
  // The first row of this item's partial results, or -1 if the item is a whole unit
  // (attention_plan.h).
  int32_t partial = -1;
  // The item reads the keys in [key_begin, key_end). If num_tiles is not 0, it reads only those in
  // the listed tiles [first_tile, first_tile + num_tiles) of the plan.
  int32_t first_tile = 0;
  int32_t num_tiles = 0;
};
struct AttentionMerge {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t partial = 0;    // first partial row of the first item
  int32_t num_items = 0;  // the partial rows of the items are adjacent, num_rows each
};

// Returns the number of keys that a thread block loads as one tile. Wide heads have fewer keys per
// tile, so that all pipeline stages fit into shared memory.
constexpr int32_t AttentionTileKeys(int32_t head_dim) { return head_dim > 128 ? 32 : 64; }
// The possible numbers of row tiles in an item. A row tile has up to 16 rows. In a step, all items
// of a sequence have the same number of row tiles. This number does not depend on the other
// sequences of the batch.
inline constexpr int32_t kAttentionRowTiles[] = {1, 2, 4};

}  // namespace quire::kernels::cuda
