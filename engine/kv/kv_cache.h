#pragma once

// The memory of the paged KV cache. Which sequence holds which block is BlockManager's business.

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/backend.h"
#include "kernels/device_buffer.h"
#include "kernels/tensor_view.h"

namespace quire::engine {

struct KvCacheShape {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int32_t block_size = 16;  // tokens
  kernels::DType dtype = kernels::DType::kF16;

  int64_t bytes_per_token() const {
    return num_layers * 2 * num_kv_heads * head_dim * kernels::SizeOf(dtype);
  }
  int64_t bytes_per_block() const { return bytes_per_token() * block_size; }
};

// [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], K then V (PagedAttention,
// arXiv:2309.06180). A block of all layers is one piece: it is copied at once, and the memory of a
// growing sequence is first touched, and cleared by the system, bit by bit and not in all layers at
// the same step.
class KvCache {
 public:
  // ResourceExhausted names the bytes when the backend has not enough.
  static absl::StatusOr<KvCache> Create(kernels::Backend& backend, const KvCacheShape& shape,
                                        int64_t num_blocks);

  const KvCacheShape& shape() const { return shape_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t bytes() const { return num_blocks_ * shape_.bytes_per_block(); }
  // [num_blocks, 2, num_kv_heads, block_size, head_dim] of one layer, with strided blocks.
  kernels::TensorView layer(int64_t i) const;
  // [num_blocks, elements of a block].
  kernels::TensorView blocks() const;

 private:
  KvCacheShape shape_;
  int64_t num_blocks_ = 0;
  kernels::DeviceBuffer buffer_;
};

}  // namespace quire::engine
