#pragma once

// The memory of the paged KV cache. Which sequence holds which block is BlockManager's business.

#include <cstdint>
#include <vector>

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

// Per layer [num_blocks, 2, num_kv_heads, block_size, head_dim], K then V (PagedAttention,
// arXiv:2309.06180): a block is one contiguous copy per layer.
class KvCache {
 public:
  // ResourceExhausted names the bytes when the backend has not enough.
  static absl::StatusOr<KvCache> Create(kernels::Backend& backend, const KvCacheShape& shape,
                                        int64_t num_blocks);

  const KvCacheShape& shape() const { return shape_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t bytes() const { return num_blocks_ * shape_.bytes_per_block(); }
  kernels::TensorView layer(int64_t i) const { return views_[i]; }

 private:
  KvCacheShape shape_;
  int64_t num_blocks_ = 0;
  std::vector<kernels::DeviceBuffer> buffers_;
  std::vector<kernels::TensorView> views_;
};

}  // namespace quire::engine
