#pragma once

// The memory of the paged KV cache. Which sequence holds which block is BlockManager's business.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/backend.h"
#include "kernels/device_buffer.h"
#include "kernels/tensor_view.h"

namespace quire::engine {

// Of one layer.
struct KvCacheShape {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int32_t block_size = 16;  // tokens
  kernels::DType dtype = kernels::DType::kF16;

  int64_t bytes_per_token() const { return 2 * num_kv_heads * head_dim * kernels::SizeOf(dtype); }
  int64_t bytes_per_block() const { return bytes_per_token() * block_size; }
};

// A KV group: layers that keep the K and V of the same tokens.
struct KvGroup {
  int64_t window = 0;           // tokens that they see back from a query, itself included; 0: all
  std::vector<int64_t> layers;  // ascending
  int64_t num_blocks = 0;
};

// Group 0 are the layers that see everything, be it none; each window is one more, ascending. A
// window that no context outgrows is none. num_blocks are 0.
std::vector<KvGroup> GroupLayers(std::span<const int64_t> layer_windows, int64_t max_model_len);

// Each group: [num_blocks, layers of the group, 2, num_kv_heads, block_size, head_dim], K then V
// (PagedAttention, arXiv:2309.06180). A block of all layers is one piece: it is copied at once, and
// the memory of a growing sequence is first touched, and cleared by the system, bit by bit and not
// in all layers at the same step.
class KvCache {
 public:
  // ResourceExhausted names the bytes when the backend has not enough.
  static absl::StatusOr<KvCache> Create(kernels::Backend& backend, const KvCacheShape& shape,
                                        std::vector<KvGroup> groups);

  const KvCacheShape& shape() const { return shape_; }
  std::span<const KvGroup> groups() const { return groups_; }
  int64_t bytes() const;
  // Of a token that every group holds.
  int64_t bytes_per_token() const;

  size_t group_of(int64_t layer) const { return places_[layer].group; }
  // [num_blocks, 2, num_kv_heads, block_size, head_dim] of one layer, with strided blocks.
  kernels::TensorView layer(int64_t i) const;
  // [num_blocks, elements of a block] of a group that has layers.
  kernels::TensorView blocks(size_t group) const;

 private:
  struct Place {
    size_t group = 0;
    int64_t index = 0;  // among the group's layers
  };
  int64_t block_bytes(size_t group) const {
    return static_cast<int64_t>(groups_[group].layers.size()) * shape_.bytes_per_block();
  }

  KvCacheShape shape_;
  std::vector<KvGroup> groups_;
  std::vector<kernels::DeviceBuffer> buffers_;  // by group
  std::vector<Place> places_;                   // by layer
};

}  // namespace quire::engine
