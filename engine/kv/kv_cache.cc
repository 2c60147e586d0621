#include "engine/kv/kv_cache.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"

namespace quire::engine {

std::vector<KvGroup> GroupLayers(std::span<const kernels::AttentionPattern> layer_patterns,
                                 int64_t max_model_len) {
  constexpr kernels::AttentionPattern kAll;
  std::map<kernels::AttentionPattern, std::vector<int64_t>> by_pattern = {{kAll, {}}};
  for (size_t i = 0; i < layer_patterns.size(); ++i) {
    const bool sees_all = layer_patterns[i].MostKeys(max_model_len) == max_model_len;
    by_pattern[sees_all ? kAll : layer_patterns[i]].push_back(static_cast<int64_t>(i));
  }
  std::vector<KvGroup> groups;
  for (auto& [pattern, layers] : by_pattern) {
    groups.push_back({.pattern = pattern, .layers = std::move(layers)});
  }
  return groups;
}

absl::StatusOr<KvCache> KvCache::Create(kernels::Backend& backend, const KvCacheShape& shape,
                                        std::vector<KvGroup> groups) {
  KvCache cache;
  cache.shape_ = shape;
  cache.groups_ = std::move(groups);
  for (size_t g = 0; g < cache.groups_.size(); ++g) {
    const KvGroup& group = cache.groups_[g];
    kernels::DeviceBuffer& buffer = cache.buffers_.emplace_back();
    if (group.layers.empty()) continue;
    ASSIGN_OR_RETURN(buffer, backend.Allocate(group.num_blocks * cache.block_bytes(g)));
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const auto layer = static_cast<size_t>(group.layers[i]);
      cache.places_.resize(std::max(cache.places_.size(), layer + 1));
      cache.places_[layer] = {.group = g, .index = static_cast<int64_t>(i)};
    }
  }
  return cache;
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (size_t g = 0; g < groups_.size(); ++g) bytes += groups_[g].num_blocks * block_bytes(g);
  return bytes;
}

int64_t KvCache::bytes_per_token() const {
  return static_cast<int64_t>(places_.size()) * shape_.bytes_per_token();
}

kernels::CacheView KvCache::layer(int64_t i) const {
  const Place place = places_[i];
  return kernels::TensorView(static_cast<char*>(buffers_[place.group].data()) +
                                 place.index * shape_.bytes_per_block(),
                             shape_.dtype,
                             {groups_[place.group].num_blocks, 2, shape_.num_kv_heads,
                              shape_.block_size, shape_.head_dim})
      .WithRowStride(block_bytes(place.group) / kernels::SizeOf(shape_.dtype));
}

kernels::TensorView KvCache::blocks(size_t group) const {
  return kernels::TensorView(
      buffers_[group].data(), shape_.dtype,
      {groups_[group].num_blocks, block_bytes(group) / kernels::SizeOf(shape_.dtype)});
}

}  // namespace quire::engine
