#pragma once

// The work items that the plan of a step's attention (attention_plan.h) passes to the kernels.

#include <cstdint>

namespace quire::kernels::cuda {

// Kernels read these structs as they are laid out here.
struct AttentionItem {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t key_begin = 0;
  int32_t key_end = 0;
  int32_t first_position = 0;  // of the sequence's first query of this step
  int32_t partial = -1;        // first row of the partial results; -1: the only item of its unit
};
struct AttentionMerge {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t partial = 0;  // first row of the first item; each has num_rows rows
  int32_t num_items = 0;
};

// The keys that a block loads at once. Wide heads take fewer, or their stages would exceed shared
// memory.
constexpr int32_t AttentionTileKeys(int32_t head_dim) { return head_dim > 128 ? 32 : 64; }
// An item has at most 16 times one of these rows; the request alone determines which one.
inline constexpr int32_t kAttentionRowTiles[] = {1, 2, 4};

}  // namespace quire::kernels::cuda
