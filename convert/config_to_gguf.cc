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
  // The attention factor may differ by rounding, because a GGUF file stores only one factor of that
  // number, as float32.
  constexpr double kRounding = 0x1p-23;
  if (!(std::abs(a.attention_factor - b.attention_factor) <= kRounding * a.attention_factor)) {
    return "rope attention_factor";
  }
  return a.frequency_divisors != b.frequency_divisors ? "rope frequencies" : "";
}

std::string_view PositionsDifference(const engine::ModelConfig& a, const engine::ModelConfig& b) {
  if (a.learned_positions != b.learned_positions) return "learned positions";
  if (a.alibi_bias_max.has_value() != b.alibi_bias_max.has_value()) return "alibi";
  if (a.alibi_bias_max && !Same(*a.alibi_bias_max, *b.alibi_bias_max)) return "alibi_bias_max";
  if (a.alibi_is_rounded != b.alibi_is_rounded) return "rounded alibi";
  if (!engine::HasRope(a)) return "";
  if (const std::string_view name = RopeDifference(a.rope, b.rope); !name.empty()) return name;
  if (a.local_rope.has_value() != b.local_rope.has_value()) return "rope of layers with a window";
  return a.local_rope ? RopeDifference(*a.local_rope, *b.local_rope) : "";
}

std::string_view Difference(const engine::ModelConfig& a, const engine::ModelConfig& b) {
  const std::pair<bool, std::string_view> fields[] = {
      {a.vocab_size == b.vocab_size, "vocab_size"},
      {a.hidden_size == b.hidden_size, "hidden_size"},
      {a.intermediate_size == b.intermediate_size, "intermediate_size"},
      {a.num_hidden_layers == b.num_hidden_layers, "num_hidden_layers"},
      {a.num_attention_heads == b.num_attention_heads, "num_attention_heads"},
      {a.num_key_value_heads == b.num_key_value_heads, "num_key_value_heads"},
      {a.head_dim == b.head_dim, "head_dim"},
      {a.max_position_embeddings == b.max_position_embeddings, "max_position_embeddings"},
      {a.norm == b.norm, "kind of norm"},
      {Same(a.norm_eps, b.norm_eps), "norm_eps"},
      {a.norm_bias == b.norm_bias, "norm_bias"},
      {a.post_norms == b.post_norms, "post_norms"},
      {Same(a.embedding_scale, b.embedding_scale), "embedding_scale"},
      {a.tie_word_embeddings == b.tie_word_embeddings, "tie_word_embeddings"},
      {a.attention_bias == b.attention_bias, "attention_bias"},
      {Same(engine::AttentionScale(a), engine::AttentionScale(b)), "attention_scale"},
      {Same(a.clip_qkv, b.clip_qkv), "clip_qkv"},
      {a.layer_windows == b.layer_windows, "sliding_window"},
      {a.qk_norm == b.qk_norm, "qk_norm"},
      {a.activation == b.activation, "activation"},
      {a.mlp_bias == b.mlp_bias, "mlp_bias"},
      {a.num_experts == b.num_experts, "num_experts"},
      {a.num_experts_per_tok == b.num_experts_per_tok, "num_experts_per_tok"},
      {a.num_experts == 0 || a.norm_topk_prob == b.norm_topk_prob, "norm_topk_prob"},
      {a.parallel_residual == b.parallel_residual, "parallel_residual"},
      {a.shared_norm == b.shared_norm, "shared_norm"},
  };
  for (const auto& [same, name] : fields) {
    if (!same) return name;
  }
  return PositionsDifference(a, b);
}

}  // namespace

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
  keys.Int("block_count", config.num_hidden_layers);
  keys.Int("feed_forward_length", config.intermediate_size);
  keys.Int("attention.head_count", config.num_attention_heads);
  keys.Int("attention.head_count_kv", config.num_key_value_heads);
  keys.Int("attention.key_length", config.head_dim);
  keys.Int("attention.value_length", config.head_dim);
  const bool rms = config.norm == kernels::NormKind::kRmsNorm;
  keys.Float(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
             config.norm_eps);
  engine::WriteGgufRope(config, keys);
  architecture->write_gguf(config, keys);
  return absl::OkStatus();
}

engine::ModelConfig WithRopeDivisors(engine::ModelConfig config) {
  engine::RopeConfig& rope = config.rope;
  if (!engine::HasRope(config) || rope.scaling != engine::RopeScaling::kLlama3) return config;
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
