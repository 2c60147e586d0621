#include "engine/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace quire::engine {

bool HasRope(const ModelConfig& config) {
  return !config.alibi_bias_max && !config.learned_positions;
}

bool ServesBeyondItsContext(const ModelConfig& config) {
  return config.alibi_bias_max.has_value() ||
         (HasRope(config) && config.rope.scaling != RopeScaling::kNone);
}

double YarnAttentionFactor(double factor, double mscale) {
  return 0.1 * mscale * std::log(std::max(factor, 1.0)) + 1.0;
}

double AttentionScale(const ModelConfig& config) {
  return config.attention_scale != 0.0 ? config.attention_scale
                                       : 1.0 / std::sqrt(static_cast<double>(config.head_dim));
}

int64_t WindowOf(const ModelConfig& config, int64_t layer) {
  return config.layer_windows.empty() ? 0 : config.layer_windows[static_cast<size_t>(layer)];
}

std::vector<int64_t> DifferentWindows(const ModelConfig& config) {
  if (config.layer_windows.empty()) return {0};
  const std::set<int64_t> windows(config.layer_windows.begin(), config.layer_windows.end());
  return {windows.begin(), windows.end()};
}

}  // namespace quire::engine
