#include "engine/model/model_config.h"

#include <cmath>
#include <set>

#include "base/reproducible_math.h"

namespace quire::engine {

bool ServesBeyondItsContext(const ModelConfig& config) {
  return config.alibi_bias_max.has_value() ||
         (!config.ropes.empty() && config.ropes[0].scaling != RopeScaling::kNone);
}

double YarnAttentionFactor(double factor, double mscale) {
  return 0.1 * mscale * base::Log(std::max(factor, 1.0)) + 1.0;
}

double AttentionScale(const AttentionSpec& attention) {
  return attention.scale != 0.0 ? attention.scale
                                : 1.0 / std::sqrt(static_cast<double>(attention.head_dim));
}

std::vector<int64_t> LayerWindows(const ModelConfig& config) {
  std::vector<int64_t> windows;
  for (const LayerSpec& layer : config.layers) windows.push_back(layer.attention.window);
  return windows;
}

std::vector<int64_t> DifferentWindows(const ModelConfig& config) {
  const std::vector<int64_t> windows = LayerWindows(config);
  const std::set<int64_t> different(windows.begin(), windows.end());
  return {different.begin(), different.end()};
}

}  // namespace quire::engine
