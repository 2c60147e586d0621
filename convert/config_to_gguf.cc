#include "convert/config_to_gguf.h"

#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/gguf_keys.h"
#include "engine/model/gguf_rope.h"
#include "engine/model/rope_table.h"

namespace quire::convert {
namespace {

// True if `a` and `b` are equal when rounded to the float32 of a GGUF file.
bool Same(double a, double b) { return static_cast<float>(a) == static_cast<float>(b); }

// Returns the name of the first field in which the two differ; empty when none does.
std::string_view RopeDifference(const engine::RopeConfig& a, const engine::RopeConfig& b) {
  if (!Same(a.theta, b.theta)) return "rope_theta";
  if (a.rope_dim != b.rope_dim) return "rope dimensions";
  const bool scaled = a.scaling != engine::RopeScaling::kNone,
             yarn = a.scaling == engine::RopeScaling::kYarn;
  if (a.scaling != b.scaling || (scaled && !Same(a.factor, b.factor))) return "rope_scaling";
  if (yarn && a.original_max_position_embeddings != b.original_max_position_embeddings) {
    return "rope original_max_position_embeddings";
  }
  if (yarn && !Same(a.beta_fast, b.beta_fast)) return "rope beta_fast";
  if (yarn && !Same(a.beta_slow, b.beta_slow)) return "rope beta_slow";
  if (yarn && a.truncate != b.truncate) return "rope truncate";
  // The attention factor is a product. A GGUF file stores only one of its factors, as float32, so
  // the attention factor may differ by rounding.
  constexpr double kRounding = 0x1p-23;
  if (!(std::abs(a.attention_factor - b.attention_factor) <= kRounding * a.attention_factor)) {
    return "rope attention_factor";
  }
  if (a.short_factors != b.short_factors) return "rope short_factor";
  if (a.long_factors != b.long_factors) return "rope long_factor";
  return a.frequency_divisors != b.frequency_divisors ? "rope frequencies" : "";
}

std::string_view PositionsDifference(const engine::ModelConfig& a, const engine::ModelConfig& b) {
  if (a.learned_positions != b.learned_positions) return "learned positions";
  if (a.alibi_bias_max.has_value() != b.alibi_bias_max.has_value()) return "alibi";
  if (a.alibi_bias_max && !Same(*a.alibi_bias_max, *b.alibi_bias_max)) return "alibi_bias_max";
  if (a.ropes.size() != b.ropes.size()) return "rope of layers with a window";
  for (size_t i = 0; i < a.ropes.size(); ++i) {
    const std::string_view name = RopeDifference(a.ropes[i], b.ropes[i]);
    if (!name.empty()) return name;
  }
  return "";
}

std::string_view LayerDifference(const engine::LayerSpec& a, const engine::LayerSpec& b) {
  const engine::AttentionSpec &x = a.attention, &y = b.attention;
  const engine::FeedForwardSpec &f = a.feed_forward, &g = b.feed_forward;
  const std::pair<bool, std::string_view> fields[] = {
      {a.residual == b.residual, "residual"},
      {f.inner_size == g.inner_size, "intermediate_size"},
      {x.num_heads == y.num_heads, "num_attention_heads"},
      {x.num_kv_heads == y.num_kv_heads, "num_key_value_heads"},
      {x.key_dim == y.key_dim, "head_dim"},
      {x.value_dim == y.value_dim, "v_head_dim"},
      {x.bias == y.bias, "attention_bias"},
      {Same(engine::AttentionScale(x), engine::AttentionScale(y)), "attention_scale"},
      {Same(x.soft_cap, y.soft_cap), "attn_logit_softcapping"},
      {Same(x.clip, y.clip), "clip_qkv"},
      {x.pattern == y.pattern, "sliding_window"},
      {x.rope == y.rope, "rope of each layer"},
      {x.qk_norm == y.qk_norm, "qk_norm"},
      {x.query_growth == y.query_growth, "scales of queries by position"},
      {Same(x.value_scale, y.value_scale), "attention_value_scale"},
      {x.alibi_is_rounded == y.alibi_is_rounded, "rounded alibi"},
      {x.sinks == y.sinks, "sinks"},
      {x.cache_scales == y.cache_scales, "scales of an fp8 cache"},
      {f.activation == g.activation, "activation"},
      {Same(f.activation_limit, g.activation_limit), "swiglu_limit"},
      {f.bias == g.bias, "mlp_bias"},
      {f.experts.router_bias == g.experts.router_bias, "bias of the router"},
      {f.experts.choice_bias == g.experts.choice_bias, "bias of the choice of experts"},
      {f.experts.count == g.experts.count, "num_experts"},
      {f.experts.per_token == g.experts.per_token, "num_experts_per_tok"},
      {!a.has_experts() || f.experts.weights == g.experts.weights, "norm_topk_prob"},
      {f.experts.weights_scale_input == g.experts.weights_scale_input, "weights of the experts"},
      {f.experts.shared_inner_size == g.experts.shared_inner_size, "shared expert"},
  };
  for (const auto& [same, name] : fields) {
    if (!same) return name;
  }
  return "";
}

std::string_view Difference(const engine::ModelConfig& a, const engine::ModelConfig& b) {
  const std::pair<bool, std::string_view> fields[] = {
      {a.vocab_size == b.vocab_size, "vocab_size"},
      {a.hidden_size == b.hidden_size, "hidden_size"},
      {a.num_layers() == b.num_layers(), "num_hidden_layers"},
      {a.max_position_embeddings == b.max_position_embeddings, "max_position_embeddings"},
      {a.norm == b.norm, "kind of norm"},
      {Same(a.norm_eps, b.norm_eps), "norm_eps"},
      {a.norm_bias == b.norm_bias, "norm_bias"},
      {Same(a.embedding_scale, b.embedding_scale), "embedding_scale"},
      {a.tie_word_embeddings == b.tie_word_embeddings, "tie_word_embeddings"},
      {Same(a.logit_scale, b.logit_scale), "logit_scale"},
      {Same(a.logit_soft_cap, b.logit_soft_cap), "final_logit_softcapping"},
  };
  for (const auto& [same, name] : fields) {
    if (!same) return name;
  }
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const std::string_view name = LayerDifference(a.layers[i], b.layers[i]);
    if (!name.empty()) return name;
  }
  return PositionsDifference(a, b);
}

void WriteCacheScales(const engine::ModelConfig& config, engine::GgufKeys& keys) {
  std::vector<float> k, v;
  bool has_scales = false;
  for (const engine::LayerSpec& layer : config.layers) {
    const kernels::CacheScales& scales = layer.attention.cache_scales;
    k.push_back(scales.k);
    v.push_back(scales.v);
    has_scales |= scales != kernels::CacheScales();
  }
  if (!has_scales) return;
  keys.Floats(engine::kGgufKCacheScales, k);
  keys.Floats(engine::kGgufVCacheScales, v);
}

// True if the scaling is written as divisors of the frequencies. GGUF has no other place for that
// of Llama 3. YaRN has keys, but llama.cpp takes its betas for 32 and 1 and rounds the ends of the
// blend, whatever the file says. llama.cpp has divisors in files of the llama architecture alone.
bool NeedsDivisors(const engine::ModelConfig& config) {
  const engine::RopeConfig& rope = config.ropes[0];
  if (rope.scaling == engine::RopeScaling::kLlama3) return true;
  return rope.scaling == engine::RopeScaling::kYarn && !HasUsualYarn(rope) &&
         engine::FindArchitecture(config.architecture)->gguf_name == "llama";
}

}  // namespace

bool HasUsualYarn(const engine::RopeConfig& rope) {
  return rope.truncate && rope.beta_fast == 32.0 && rope.beta_slow == 1.0;
}

absl::Status ConfigToGguf(const engine::ModelConfig& config, files::GgufValues& values) {
  const engine::Architecture* architecture = engine::FindArchitecture(config.architecture);
  if (architecture == nullptr || architecture->write_gguf == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("no GGUF files are written of the architecture ", config.architecture));
  }
  values.String("general.architecture", architecture->gguf_name);
  values.String("general.type", "model");
  engine::GgufKeys keys(values, architecture->gguf_name);
  keys.Int("vocab_size", config.vocab_size);
  keys.Int("context_length", config.max_position_embeddings);
  keys.Int("embedding_length", config.hidden_size);
  keys.Int("block_count", config.num_layers());
  const auto of_layers = [&](std::string_view name, auto of_layer) {
    std::vector<int32_t> numbers;
    for (const engine::LayerSpec& layer : config.layers) {
      numbers.push_back(static_cast<int32_t>(of_layer(layer)));
    }
    keys.IntsOfLayers(name, numbers);
  };
  using engine::LayerSpec;
  of_layers("feed_forward_length", [](const LayerSpec& l) { return l.feed_forward.inner_size; });
  of_layers("attention.head_count", [](const LayerSpec& l) { return l.attention.num_heads; });
  of_layers("attention.head_count_kv", [](const LayerSpec& l) { return l.attention.num_kv_heads; });
  // These keys describe the first layer. If another layer differs, CheckSameModel refuses the model
  // after the keys are read back.
  const LayerSpec& layer = config.layers[0];
  keys.Int("attention.key_length", layer.attention.key_dim);
  keys.Int("attention.value_length", layer.attention.value_dim);
  const bool rms = config.norm == kernels::NormKind::kRmsNorm;
  keys.Float(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
             config.norm_eps);
  WriteCacheScales(config, keys);
  engine::WriteGgufRope(config, keys);
  architecture->write_gguf(config, keys);
  return absl::OkStatus();
}

engine::ModelConfig WithRopeDivisors(engine::ModelConfig config) {
  if (config.ropes.empty() || !NeedsDivisors(config)) return config;
  engine::RopeConfig& rope = config.ropes[0];
  engine::RopeConfig plain = rope;
  plain.scaling = engine::RopeScaling::kNone;
  const std::vector<double> from = engine::RopeFrequencies(plain, 1),
                            to = engine::RopeFrequencies(rope, 1);
  plain.frequency_divisors.clear();
  for (size_t i = 0; i < from.size(); ++i) {
    const float divisor = rope.frequency_divisors.empty() ? 1.0f : rope.frequency_divisors[i];
    plain.frequency_divisors.push_back(static_cast<float>(divisor * from[i] / to[i]));
  }
  plain.factor = engine::RopeConfig().factor;
  rope = plain;
  return config;
}

absl::Status CheckSameModel(const engine::ModelConfig& config, const engine::ModelConfig& gguf) {
  const std::string_view name = Difference(config, gguf);
  if (name.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(base::ToAbsl(name), ": a GGUF file of the ", config.architecture,
                   " architecture has no place for what this model has"));
}

}  // namespace quire::convert
