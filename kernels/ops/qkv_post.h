#pragma once

// All work between the fused QKV projection and attention, in one pass over the row: split, bias,
// clipping, normalisation of queries and keys (arXiv:2010.04245), rotary embedding (RoFormer,
// arXiv:2104.09864), and the write of K and V into the paged cache, in that order.
//
//   kInterleaved rotates dimensions (2i, 2i + 1) of a head (GGUF llama), kHalfSplit (i, i +
//   rope_dim / 2) (Hugging Face); dimensions past rope_dim pass through.
//
// Numeric: all in float32, sums as in norm.h; K and V are rounded once, to the cache's dtype. A
//          slot's bytes depend only on its token.

#include "absl/status/status.h"

#include "kernels/ops/norm.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

enum class RopeLayout { kNone, kInterleaved, kHalfSplit };

// If the norm weights are as long as one head, each head is normalised by itself (Qwen 3, Gemma 3).
// If they are as long as all heads, the queries of a token are normalised together, and so are its
// keys (MPT's qk_ln, OLMo 2).
struct QkNorm {
  TensorView query_weight;  // [head_dim] or [num_heads * head_dim]  f32; empty without QK-norm
  TensorView key_weight;    // [head_dim] or [num_kv_heads * head_dim], as the query's
  NormKind kind = NormKind::kRmsNorm;
  float eps = 1e-5f;
};

struct QkvPostArgs {
  TensorView query;         // [num_tokens, num_heads, head_dim]  activation dtype, written
  TensorView kv_cache;      // [num_blocks, 2, num_kv_heads, block_size, head_dim]  slots written
  TensorView qkv;           // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: Q, K, V
  TensorView positions;     // [num_tokens]  int32
  TensorView slot_mapping;  // [num_tokens]  int64, block_id * block_size + offset
  TensorView rope_table;    // [max_positions, rope_dim / 2, 2]  f32: cos, sin; scaled already
  RopeLayout rope_layout = RopeLayout::kNone;
  TensorView bias;    // as long as a row of qkv, f32; empty without one
  float clip = 0.0f;  // elements are clamped to [-clip, clip] (MPT's clip_qkv); 0: no clamp
  QkNorm qk_norm;
};
absl::Status Validate(const QkvPostArgs& args);

}  // namespace quire::kernels
