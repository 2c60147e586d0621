#pragma once

// The K and V of one layer in the paged cache, as the ops of attention get them.
//
// In a block, the keys of all KV heads come before the values. The blocks of K and those of V have
// the same numbers and the same stride. The backend chooses the order of elements in the last two
// dimensions.

#include <cstdint>
#include <string>

#include "kernels/tensor_view.h"

namespace quire::kernels {

// The scales of the elements of an fp8_e4m3 cache: a key is the stored number times `k`, and a
// value the stored number times `v`. Caches of other dtypes have none, so theirs are 1.
struct CacheScales {
  // The ends of the range of scales. Softmax scales and outputs, which attention multiplies by
  // scales and by up to 2^56 (cuda/attn_fp8.cuh), then stay normal numbers of float32.
  static constexpr float kSmallest = 0x1p-60f, kLargest = 0x1p60f;

  float k = 1.0f, v = 1.0f;
  bool operator==(const CacheScales&) const = default;
};

struct CacheView {
  TensorView keys;    // [num_blocks, num_kv_heads, block_size, key_dim]  f32|f16|bf16|fp8_e4m3
  TensorView values;  // [num_blocks, num_kv_heads, block_size, value_dim]  dtype of keys
  CacheScales scales = {};
  // [num_kv_heads]  f32: for each head, at least the Euclidean norm of every key in the cache, as
  // it is stored there. QkvPost raises the norms, and nothing lowers them. Infinite once a key was
  // not finite. Empty: not kept (BackendInfo::keeps_key_norms).
  TensorView key_norms;

  CacheView() = default;
  // A cache whose blocks are `block_stride` elements apart. The first block begins at `data`.
  CacheView(void* data, DType dtype, int64_t num_blocks, int64_t num_kv_heads, int64_t block_size,
            int64_t key_dim, int64_t value_dim, int64_t block_stride);
  // A cache with keys and values of one size: [num_blocks, 2, num_kv_heads, block_size, head_dim],
  // K before V, with blocks that may be strided. A view of another shape becomes `keys`, so that an
  // op's Validate can report it.
  CacheView(const TensorView& both);  // NOLINT(google-explicit-constructor)

  DType dtype() const { return keys.dtype(); }
  int64_t num_blocks() const { return keys.dim(0); }
  int64_t num_kv_heads() const { return keys.dim(1); }
  int64_t block_size() const { return keys.dim(2); }
  int64_t key_dim() const { return keys.dim(3); }
  int64_t value_dim() const { return values.dim(3); }
  int64_t block_stride() const { return keys.row_stride(); }  // elements
  // Returns dtype and dims for an error message, such as "f16 [64, 4, 16, 192/128]".
  std::string ToString() const;
};

}  // namespace quire::kernels
