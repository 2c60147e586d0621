// The text models of Gemma 3 (arXiv:2503.19786). They have norms before and after attention and
// feed-forward, a norm of each head of queries and keys, GeGLU, and an embedding that is scaled up.
// Five of six layers have a window, and rotary positions of shorter wavelengths.

#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"
#include "engine/model/architectures/rope_fields.h"
#include "engine/model/architectures/shared_fields.h"
#include "engine/model/model_config_reader.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kGemma3Classes = {"Gemma3ForCausalLM"};
constexpr LlamaDefaults kGemma3Defaults = {
    .num_key_value_heads = 4, .head_dim = 256, .max_position_embeddings = 131072};
constexpr int64_t kGemma3Pattern = 6;  // of this many layers, only the last sees all tokens

// Sets the members that no file gives. transformers rounds the scale of the embedding to the dtype
// of the weights. For instance, at a width of 640 the scale is 25.298, and 25.25 in bf16. Here the
// scale is not rounded, as in llama.cpp and in transformers with float32.
void SetWhatGemmasHave(ModelConfig& config) {
  config.post_norms = true;
  config.activation = kernels::Activation::kGeluTanhMul;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.qk_norm = QkNormScope::kHead;
}

absl::Status ReadGemma3Ropes(const HfFields& fields, ModelConfig& config) {
  RopeConfig& global = config.rope;
  global.rope_dim = config.head_dim;
  RopeConfig local = global;
  RETURN_IF_ERROR(fields.Float("rope_theta", 1e6, global.theta));
  RETURN_IF_ERROR(fields.Float("rope_local_base_freq", 1e4, local.theta));
  ASSIGN_OR_RETURN(const std::optional<HfFields> scaling, fields.Object("rope_scaling"));
  if (scaling) RETURN_IF_ERROR(ReadRopeParameters(*scaling, config, global));
  ASSIGN_OR_RETURN(const std::optional<HfFields> by_type, fields.Object("rope_parameters"));
  if (by_type) {
    for (const auto& [layer_type, parameters] : by_type->object().items()) {
      if (layer_type != "full_attention" && layer_type != "sliding_attention") {
        return by_type->Wrong(layer_type, "full_attention and sliding_attention alone");
      }
    }
    ASSIGN_OR_RETURN(const std::optional<HfFields> full, by_type->Object("full_attention"));
    if (full) RETURN_IF_ERROR(ReadRopeParameters(*full, config, global));
    ASSIGN_OR_RETURN(const std::optional<HfFields> sliding, by_type->Object("sliding_attention"));
    if (sliding) RETURN_IF_ERROR(ReadRopeParameters(*sliding, config, local));
  }
  config.local_rope = local;
  return absl::OkStatus();
}

absl::Status ReadGemma3(const HfFields& fields, std::string_view, ModelConfig& config) {
  std::string activation;
  RETURN_IF_ERROR(fields.String("hidden_activation", "gelu_pytorch_tanh", activation));
  if (activation != "gelu_pytorch_tanh") {
    return fields.Wrong("hidden_activation", "gelu_pytorch_tanh");
  }
  RETURN_IF_ERROR(CheckLlamaFeatures(fields, kGemma3Defaults));
  RETURN_IF_ERROR(fields.WantFalse({"use_bidirectional_attention"}));
  RETURN_IF_ERROR(ReadLlamaSizes(fields, kGemma3Defaults, config));
  SetWhatGemmasHave(config);
  config.norm_weight_offset = 1.0;  // files hold the norm weights less 1
  double scalar = 0.0;
  RETURN_IF_ERROR(fields.Float("query_pre_attn_scalar", 256.0, scalar));
  if (!(scalar > 0.0)) return fields.Wrong("query_pre_attn_scalar", "more than 0");
  config.attention_scale = 1.0 / std::sqrt(scalar);
  int64_t window = 0, pattern = 0;
  RETURN_IF_ERROR(fields.Int("sliding_window", 4096, window));
  RETURN_IF_ERROR(fields.Int("sliding_window_pattern", kGemma3Pattern, pattern));
  if (window < 1) return fields.Wrong("sliding_window", "at least 1");
  if (pattern < 1) return fields.Wrong("sliding_window_pattern", "at least 1");
  RETURN_IF_ERROR(ReadLayerWindows(
      fields, window, [&](int64_t layer) { return (layer + 1) % pattern != 0; }, config));
  RETURN_IF_ERROR(ReadGemma3Ropes(fields, config));
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, config.attention_bias));
  return fields.Bool("tie_word_embeddings", true, config.tie_word_embeddings);
}

absl::Status ReadGemma3Gguf(GgufFields& fields, ModelConfig& config) {
  SetWhatGemmasHave(config);
  // The 27B model has another attention scale. As in llama.cpp, it is recognised by its number of
  // layers.
  constexpr int64_t kLayersOf27B = 62;
  if (config.num_hidden_layers == kLayersOf27B) {
    config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.hidden_size) /
                                             static_cast<double>(config.num_attention_heads));
  }
  config.local_rope = RopeConfig{.rope_dim = config.rope.rope_dim};
  RETURN_IF_ERROR(fields.Float("rope.freq_base_swa", 10000.0, config.local_rope->theta));
  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("attention.sliding_window", std::nullopt, window));
  if (config.num_hidden_layers < 1 || config.num_hidden_layers > kMaxLayers) {
    return absl::OkStatus();  // Validate reports the error
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    config.layer_windows.push_back((layer + 1) % kGemma3Pattern != 0 ? window : 0);
  }
  return absl::OkStatus();
}

void WriteGemma3Gguf(const ModelConfig& config, GgufKeys& keys) {
  if (!config.layer_windows.empty()) {
    keys.Int("attention.sliding_window", DifferentWindows(config).back());
  }
  if (config.local_rope) keys.Float("rope.freq_base_swa", config.local_rope->theta);
}

constexpr TensorNames WithGemma3Norms(TensorNames names) {
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  names.attention_post_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return names;
}

constexpr TensorNames WithGemma3GgufNorms(TensorNames names) {
  names.q_norm = "attn_q_norm";
  names.k_norm = "attn_k_norm";
  names.attention_post_norm = "post_attention_norm";
  names.mlp_post_norm = "post_ffw_norm";
  return names;
}

}  // namespace

const Architecture kGemma3 = {
    .name = "gemma3",
    .hf_classes = kGemma3Classes,
    .read_hf = ReadGemma3,
    .hf_names = [](const ModelConfig&) { return WithGemma3Norms(kLlamaHfNames); },
    .read_gguf = ReadGemma3Gguf,
    .gguf_names = [](const ModelConfig&) { return WithGemma3GgufNorms(kGgufNames); },
    .write_gguf = WriteGemma3Gguf,
};

}  // namespace quire::engine
