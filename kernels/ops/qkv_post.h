#pragma once

// What happens between the fused QKV projection and attention, in one pass over the row: split,
// rotary embedding (RoFormer, arXiv:2104.09864), and the write of K and V into the paged cache.
//
//   kInterleaved rotates dimensions (2i, 2i + 1) of a head (GGUF llama), kHalfSplit (i, i +
//   rope_dim / 2) (Hugging Face); dimensions past rope_dim pass through.
//
// Numeric: rotation in float32; K and V are rounded once, to the cache's dtype. A slot's bytes
//          depend on its token alone.

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

enum class RopeLayout { kNone, kInterleaved, kHalfSplit };

struct QkvPostArgs {
  TensorView query;         // [num_tokens, num_heads, head_dim]  activation dtype, written
  TensorView kv_cache;      // [num_blocks, 2, num_kv_heads, block_size, head_dim]  slots written
  TensorView qkv;           // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: Q, K, V
  TensorView positions;     // [num_tokens]  int32
  TensorView slot_mapping;  // [num_tokens]  int64, block_id * block_size + offset
  TensorView rope_table;    // [max_positions, rope_dim / 2, 2]  f32: cos, sin; scaled already
  RopeLayout rope_layout = RopeLayout::kNone;
};
absl::Status Validate(const QkvPostArgs& args);

}  // namespace quire::kernels
