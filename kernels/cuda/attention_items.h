#pragma once

// What the plan of a step's attention (attention_plan.h) hands to the kernels.

#include <cstdint>

namespace quire::kernels::cuda {

// Read by the kernels as they lie here.
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
  int32_t partial = 0;  // of the first item; each has num_rows rows, one item after another
  int32_t num_items = 0;
};

// Keys that a block takes at once. Wide heads take fewer, or their stages outgrow shared memory.
constexpr int32_t AttentionTileKeys(int32_t head_dim) { return head_dim > 128 ? 32 : 64; }
// Rows of an item are at most 16 times one of these; which one follows from the request alone.
inline constexpr int32_t kAttentionRowTiles[] = {1, 2, 4};

}  // namespace quire::kernels::cuda
