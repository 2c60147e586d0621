#pragma once

// Does all work between the fused QKV projection and attention, in one pass over each row. The
// steps are, in this order: split, bias, clipping, normalisation of queries and keys
// (arXiv:2010.04245), rotary embedding (RoFormer, arXiv:2104.09864), scaling of queries by their
// position (arXiv:2501.19399), scaling of values, and the write of K and V into the paged cache.
//
//   kInterleaved rotates dimensions 2i and 2i + 1 of a head together (GGUF llama). kHalfSplit
//   rotates dimensions i and i + rope_dim / 2 together (Hugging Face). Dimensions past rope_dim
//   pass through.
//
// Numeric: all arithmetic is in float32, with the order of sums that norm.h describes. K and V are
//          rounded once, to the dtype of the cache; those of an fp8 cache are first divided by its
//          scales. The bytes of a cache slot depend only on the token that is stored there.

#include "absl/status/status.h"

#include "kernels/cache_view.h"
#include "kernels/ops/norm.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

enum class RopeLayout { kNone, kInterleaved, kHalfSplit };

// If the norm weights are as long as one head, each head is normalised by itself (Qwen 3, Gemma 3).
// If they are as long as all heads together, all query heads of a token are normalised as one
// vector, and all key heads of the token as another (MPT's qk_ln, OLMo 2).
struct QkNorm {
  TensorView query_weight;  // [key_dim] or [num_heads * key_dim]  f32; empty: no QK-norm
  TensorView key_weight;    // [key_dim] or [num_kv_heads * key_dim]  f32; empty: no QK-norm
  NormKind kind = NormKind::kRmsNorm;
  float eps = 1e-5f;
};

struct QkvPostArgs {
  TensorView query;    // [num_tokens, num_heads, key_dim]  activation dtype, written
  CacheView kv_cache;  // slots written, and key_norms raised
  // [num_tokens, (num_heads + num_kv_heads) * key_dim + num_kv_heads * value_dim]: Q, K, V
  TensorView qkv;
  TensorView positions;     // [num_tokens]  int32
  TensorView slot_mapping;  // [num_tokens]  int64, block_id * block_size + offset
  TensorView rope_table;    // [num_positions, rope_dim / 2, 2]  f32: (cos, sin) * attention_factor
  RopeLayout rope_layout = RopeLayout::kNone;
  TensorView query_scales;   // [num_positions]  f32: factors of queries; empty: all are 1
  TensorView bias;           // as long as a row of qkv, f32; empty: none
  float value_scale = 1.0f;  // factor of values, after bias and clipping
  float clip = 0.0f;         // elements are clamped to [-clip, clip] (MPT's clip_qkv); 0: no clamp
  QkNorm qk_norm;
};
absl::Status Validate(const QkvPostArgs& args);
// Returns the number of positions in the tables, or 0 without tables. `args` must have been
// validated.
int64_t NumPositions(const QkvPostArgs& args);

}  // namespace quire::kernels
