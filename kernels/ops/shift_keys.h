#pragma once

// Moves cached keys to earlier positions: the rotary embedding (RoFormer, arXiv:2104.09864) of
// position p in them becomes that of p - distance, in place, in every slot of a block.
//
//   each pair (a, b) that rotates together, with the row of the table at `distance`:
//     a' = a * cos + b * sin,   b' = b * cos - a * sin
//
// For streams that continue past their window: attention uses a key's place in the cache as its
// position (StreamingLLM, arXiv:2309.17453). Keys without rotary positions need no such op.
//
// Numeric: in float32, rounded once to the cache's dtype. A rotation adds at most that rounding and
//          3 * 2^-24 * (|a| + |b|) to an element. A key's bytes depend only on its bytes before and
//          on its moves.
// Cost:    reads and writes the keys, once.

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/ops/qkv_post.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

struct KeyShift {
  int32_t block = 0;
  int32_t distance = 0;  // positions towards the front, at least 0
};

struct ShiftKeysArgs {
  TensorView kv_cache;    // [num_blocks, 2, num_kv_heads, block_size, head_dim]  keys written
  TensorView rope_table;  // as in QkvPost; it has a row for every distance
  RopeLayout rope_layout = RopeLayout::kHalfSplit;
  float table_scale = 1.0f;          // the factor in the table's cosines and sines (YaRN)
  std::span<const KeyShift> shifts;  // on the host; a block at most once
};
absl::Status Validate(const ShiftKeysArgs& args);

}  // namespace quire::kernels
