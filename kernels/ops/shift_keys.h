#pragma once

// Moves cached keys to earlier positions, in place, in every slot of a block. A key with the rotary
// embedding (RoFormer, arXiv:2104.09864) of position p gets the embedding of position p - distance.
//
//   For each pair (a, b) that rotates together, with cos and sin from row `distance` of the table:
//     a' = a * cos + b * sin,   b' = b * cos - a * sin
//
// The op serves streams that continue past their window. In such a stream, attention uses the place
// of a key in the cache as its position (StreamingLLM, arXiv:2309.17453). Keys without a rotary
// embedding do not need the op.
//
// Numeric: computed in float32, rounded once to the dtype of the cache. A rotation is linear, so it
//          does not depend on the scale of an fp8 cache; an element that becomes larger than 448
//          times the scale saturates. The error that one rotation
//          adds to an element is at most this rounding plus 3 * 2^-24 * (|a| + |b|). The bytes of a
//          key depend only on its earlier bytes and on its moves.
// Cost:    reads and writes each key once.

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/cache_view.h"
#include "kernels/ops/qkv_post.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

struct KeyShift {
  int32_t block = 0;
  int32_t distance = 0;  // subtracted from the positions of the keys; at least 0
};

struct ShiftKeysArgs {
  CacheView kv_cache;     // keys written
  TensorView rope_table;  // as in QkvPostArgs; needs a row for every distance
  RopeLayout rope_layout = RopeLayout::kHalfSplit;
  float table_scale = 1.0f;          // the attention_factor in rope_table
  std::span<const KeyShift> shifts;  // on the host; each block occurs at most once
};
absl::Status Validate(const ShiftKeysArgs& args);

}  // namespace quire::kernels
