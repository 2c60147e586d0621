#include "engine/model/model.h"

namespace quire::engine {

std::vector<KvLayerShape> KvLayerShapes(const ModelConfig& config) {
  std::vector<KvLayerShape> shapes;
  for (const LayerSpec& layer : config.layers) {
    shapes.push_back({.num_kv_heads = layer.attention.num_kv_heads,
                      .key_dim = layer.attention.key_dim,
                      .value_dim = layer.attention.value_dim,
                      .scales = layer.attention.cache_scales});
  }
  return shapes;
}

}  // namespace quire::engine
