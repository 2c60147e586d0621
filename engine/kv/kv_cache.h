#pragma once

// The memory of the paged KV cache. BlockManager knows which sequence holds which block.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/backend.h"
#include "kernels/cache_view.h"
#include "kernels/device_buffer.h"
#include "kernels/ops/attention_pattern.h"
#include "kernels/tensor_view.h"

namespace quire::engine {

// The shape of one token's K and V in one layer, and their scales. Layers may differ.
struct KvLayerShape {
  int64_t num_kv_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  kernels::CacheScales scales = {};  // only an fp8 cache has them

  int64_t elements() const { return num_kv_heads * (key_dim + value_dim); }
};

// A KV group: layers that keep the K and V of the same tokens.
struct KvGroup {
  kernels::AttentionPattern pattern;  // decides which keys are dropped; group 0: none
  std::vector<int64_t> layers;        // ascending
  int64_t num_blocks = 0;
};

struct KvCacheShape {
  std::vector<KvLayerShape> layers;
  int32_t block_size = 16;  // tokens
  kernels::DType dtype = kernels::DType::kF16;

  int64_t bytes_per_block(int64_t layer) const {
    return layers[layer].elements() * block_size * kernels::SizeOf(dtype);
  }
  // Returns the bytes of a block of all the group's layers.
  int64_t bytes_per_block(const KvGroup& group) const;
};

// Returns the KV groups of the layers, with num_blocks = 0. Group 0 holds the layers that drop no
// key, and may be empty. Such a layer sees all keys, has a pattern with holes, or has a window that
// no context of at most max_model_len tokens outgrows. The pattern of group 0 sees all keys. Each
// other pattern has one group, in ascending order of the patterns.
std::vector<KvGroup> GroupLayers(std::span<const kernels::AttentionPattern> layer_patterns,
                                 int64_t max_model_len);

// A block of a group holds one run of each of the group's layers, in ascending order. The run of a
// layer is K, [num_kv_heads, block_size, key_dim], and then V, [num_kv_heads, block_size,
// value_dim] (PagedAttention, arXiv:2309.06180). Runs of layers that differ have different lengths.
// One block of all layers is contiguous, so that one copy moves the block. The operating system
// clears a page of memory when the page is first touched. With one array for each layer, a growing
// sequence would touch a new page of every array in the same step. This layout spreads the clearing
// over several steps.
//
// If the backend keeps norms of keys (BackendInfo::keeps_key_norms), every layer has them. They
// only grow, so they stay valid for keys that are copied, shared, kept by the prefix cache or
// replaced.
class KvCache {
 public:
  // Returns ResourceExhausted, with the number of bytes, when the backend has too little memory.
  // Every layer of `shape` is in one of the groups.
  static absl::StatusOr<KvCache> Create(kernels::Backend& backend, KvCacheShape shape,
                                        std::vector<KvGroup> groups);

  const KvCacheShape& shape() const { return shape_; }
  std::span<const KvGroup> groups() const { return groups_; }
  int64_t bytes() const;
  // Returns the bytes of a token that has K and V in every group.
  int64_t bytes_per_token() const;

  size_t group_of(int64_t layer) const { return places_[layer].group; }
  kernels::CacheView layer(int64_t i) const;
  // Returns the blocks of a group that has layers, as [num_blocks, elements of a block].
  kernels::TensorView blocks(size_t group) const;

 private:
  struct Place {
    size_t group = 0;
    int64_t offset = 0;      // of the layer's run in a block, in bytes
    int64_t first_norm = 0;  // of the layer, in key_norms_
  };

  KvCacheShape shape_;
  std::vector<KvGroup> groups_;
  std::vector<kernels::DeviceBuffer> buffers_;  // by group
  kernels::DeviceBuffer key_norms_;             // of all layers; empty: not kept
  std::vector<Place> places_;                   // by layer
};

}  // namespace quire::engine
