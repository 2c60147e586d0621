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
                                : 1.0 / std::sqrt(static_cast<double>(attention.key_dim));
}

kernels::AttentionPlanKey AttentionSpec::plan_key() const {
  return {.heads = {static_cast<int32_t>(num_heads), static_cast<int32_t>(num_kv_heads),
                    static_cast<int32_t>(key_dim), static_cast<int32_t>(value_dim)},
          .pattern = pattern,
          .alibi_is_rounded = alibi_is_rounded};
}

bool HeadsAreAlike(const ModelConfig& config) {
  const kernels::AttentionHeads first = config.layers[0].attention.plan_key().heads;
  return std::ranges::all_of(config.layers, [&](const LayerSpec& layer) {
    return layer.attention.plan_key().heads == first;
  });
}

std::vector<kernels::AttentionPattern> LayerPatterns(const ModelConfig& config) {
  std::vector<kernels::AttentionPattern> patterns;
  for (const LayerSpec& layer : config.layers) patterns.push_back(layer.attention.pattern);
  return patterns;
}

std::vector<kernels::AttentionPattern> DifferentPatterns(const ModelConfig& config) {
  const std::vector<kernels::AttentionPattern> patterns = LayerPatterns(config);
  const std::set<kernels::AttentionPattern> different(patterns.begin(), patterns.end());
  return {different.begin(), different.end()};
}

}  // namespace quire::engine
