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
    const bool keeps_all = layer_patterns[i].MostKept(max_model_len) == max_model_len;
    by_pattern[keeps_all ? kAll : layer_patterns[i]].push_back(static_cast<int64_t>(i));
  }
  std::vector<KvGroup> groups;
  for (auto& [pattern, layers] : by_pattern) {
    groups.push_back({.pattern = pattern, .layers = std::move(layers)});
  }
  return groups;
}

int64_t KvCacheShape::bytes_per_block(const KvGroup& group) const {
  int64_t bytes = 0;
  for (const int64_t layer : group.layers) bytes += bytes_per_block(layer);
  return bytes;
}

absl::StatusOr<KvCache> KvCache::Create(kernels::Backend& backend, KvCacheShape shape,
                                        std::vector<KvGroup> groups) {
  KvCache cache;
  cache.shape_ = std::move(shape);
  cache.places_.resize(cache.shape_.layers.size());
  cache.groups_ = std::move(groups);
  for (size_t g = 0; g < cache.groups_.size(); ++g) {
    const KvGroup& group = cache.groups_[g];
    kernels::DeviceBuffer& buffer = cache.buffers_.emplace_back();
    if (group.layers.empty()) continue;
    int64_t offset = 0;
    for (const int64_t layer : group.layers) {
      cache.places_[layer] = {.group = g, .offset = offset};
      offset += cache.shape_.bytes_per_block(layer);
    }
    ASSIGN_OR_RETURN(buffer, backend.Allocate(group.num_blocks * offset));
  }
  if (backend.info().keeps_key_norms) {
    int64_t num_norms = 0;
    for (size_t layer = 0; layer < cache.places_.size(); ++layer) {
      cache.places_[layer].first_norm = num_norms;
      num_norms += cache.shape_.layers[layer].num_kv_heads;
    }
    ASSIGN_OR_RETURN(cache.key_norms_,
                     backend.Allocate(num_norms * kernels::SizeOf(kernels::DType::kF32)));
  }
  return cache;
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const KvGroup& group : groups_) bytes += group.num_blocks * shape_.bytes_per_block(group);
  return bytes;
}

int64_t KvCache::bytes_per_token() const {
  int64_t elements = 0;
  for (const KvLayerShape& layer : shape_.layers) elements += layer.elements();
  return elements * kernels::SizeOf(shape_.dtype);
}

kernels::CacheView KvCache::layer(int64_t i) const {
  const Place place = places_[i];
  const KvGroup& group = groups_[place.group];
  const KvLayerShape& shape = shape_.layers[i];
  kernels::CacheView view(static_cast<char*>(buffers_[place.group].data()) + place.offset,
                          shape_.dtype, group.num_blocks, shape.num_kv_heads, shape_.block_size,
                          shape.key_dim, shape.value_dim,
                          shape_.bytes_per_block(group) / kernels::SizeOf(shape_.dtype));
  if (shape_.dtype == kernels::DType::kF8E4M3) view.scales = shape.scales;
  if (key_norms_.data() != nullptr) {
    view.key_norms = kernels::TensorView(static_cast<float*>(key_norms_.data()) + place.first_norm,
                                         kernels::DType::kF32, {shape.num_kv_heads});
  }
  return view;
}

kernels::TensorView KvCache::blocks(size_t group) const {
  return kernels::TensorView(buffers_[group].data(), shape_.dtype,
                             {groups_[group].num_blocks, shape_.bytes_per_block(groups_[group]) /
                                                             kernels::SizeOf(shape_.dtype)});
}

}  // namespace quire::engine
