#include "engine/kv/kv_cache.h"

#include "base/status_macros.h"

namespace quire::engine {

absl::StatusOr<KvCache> KvCache::Create(kernels::Backend& backend, const KvCacheShape& shape,
                                        int64_t num_blocks) {
  KvCache cache;
  cache.shape_ = shape;
  cache.num_blocks_ = num_blocks;
  ASSIGN_OR_RETURN(cache.buffer_, backend.Allocate(cache.bytes()));
  return cache;
}

kernels::TensorView KvCache::layer(int64_t i) const {
  const int64_t block_bytes = shape_.bytes_per_block();
  return kernels::TensorView(
             static_cast<char*>(buffer_.data()) + i * (block_bytes / shape_.num_layers),
             shape_.dtype,
             {num_blocks_, 2, shape_.num_kv_heads, shape_.block_size, shape_.head_dim})
      .WithRowStride(block_bytes / kernels::SizeOf(shape_.dtype));
}

kernels::TensorView KvCache::blocks() const {
  return kernels::TensorView(
      buffer_.data(), shape_.dtype,
      {num_blocks_, shape_.bytes_per_block() / kernels::SizeOf(shape_.dtype)});
}

}  // namespace quire::engine
