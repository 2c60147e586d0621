#include "engine/kv/kv_cache.h"

#include "base/status_macros.h"

namespace quire::engine {

absl::StatusOr<KvCache> KvCache::Create(kernels::Backend& backend, const KvCacheShape& shape,
                                        int64_t num_blocks) {
  KvCache cache;
  cache.shape_ = shape;
  cache.num_blocks_ = num_blocks;
  const int64_t layer_bytes = num_blocks * shape.bytes_per_block() / shape.num_layers;
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    ASSIGN_OR_RETURN(kernels::DeviceBuffer buffer, backend.Allocate(layer_bytes));
    cache.views_.emplace_back(buffer.data(), shape.dtype,
                              std::initializer_list<int64_t>{num_blocks, 2, shape.num_kv_heads,
                                                             shape.block_size, shape.head_dim});
    cache.buffers_.push_back(std::move(buffer));
  }
  return cache;
}

}  // namespace quire::engine
