#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model_config.h"

namespace quire::engine {

// Returns the window of each layer, in tokens; 0: the layer sees all keys.
inline std::vector<int64_t> LayerWindows(const ModelConfig& config) {
  std::vector<int64_t> windows;
  for (const LayerSpec& layer : config.layers) windows.push_back(layer.attention.pattern.tokens);
  return windows;
}

}  // namespace quire::engine
