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

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kGemma3Classes = {"Gemma3ForCausalLM"};
constexpr LlamaDefaults kGemma3Defaults = {
    .num_key_value_heads = 4, .head_dim = 256, .max_position_embeddings = 131072};
constexpr int64_t kGemma3Pattern = 6;  // of this many layers, only the last sees all tokens

// Sets the members that no file gives. transformers rounds the scale of the embedding to the dtype
// of the weights. For instance, at a width of 640 the scale is 25.298, and 25.25 in bf16. Here the
// scale is not rounded, as in llama.cpp and in transformers with float32.
void SetWhatGemmasHave(ModelDraft& draft) {
  draft.every.residual = Residual::kPostNorms;
  draft.every.feed_forward.activation = kernels::Activation::kGeluTanhMul;
  draft.embedding_scale = std::sqrt(static_cast<double>(draft.hidden_size));
  draft.every.attention.qk_norm = QkNormScope::kHead;
}

// Gives the layers that have a window the second rotation.
void RotateLocally(ModelDraft& draft) {
  draft.Vary([](int64_t, LayerSpec& layer) {
    if (layer.attention.window != 0) layer.attention.rope = 1;
  });
}

absl::Status ReadGemma3Ropes(const HfFields& fields, ModelDraft& draft) {
  RopeConfig& global = draft.ropes[0];
  global.rope_dim = draft.every.attention.head_dim;
  RopeConfig local = global;
  RETURN_IF_ERROR(fields.Float("rope_theta", 1e6, global.theta));
  RETURN_IF_ERROR(fields.Float("rope_local_base_freq", 1e4, local.theta));
  ASSIGN_OR_RETURN(const std::optional<HfFields> scaling, fields.Object("rope_scaling"));
  if (scaling) RETURN_IF_ERROR(ReadRopeParameters(*scaling, draft, global));
  ASSIGN_OR_RETURN(const std::optional<HfFields> by_type, fields.Object("rope_parameters"));
  if (by_type) {
    for (const auto& [layer_type, parameters] : by_type->object().items()) {
      if (layer_type != "full_attention" && layer_type != "sliding_attention") {
        return by_type->Wrong(layer_type, "full_attention and sliding_attention alone");
      }
    }
    ASSIGN_OR_RETURN(const std::optional<HfFields> full, by_type->Object("full_attention"));
    if (full) RETURN_IF_ERROR(ReadRopeParameters(*full, draft, global));
    ASSIGN_OR_RETURN(const std::optional<HfFields> sliding, by_type->Object("sliding_attention"));
    if (sliding) RETURN_IF_ERROR(ReadRopeParameters(*sliding, draft, local));
  }
  draft.ropes.push_back(local);
  return absl::OkStatus();
}

absl::Status ReadGemma3(const HfFields& fields, std::string_view, ModelDraft& draft) {
  std::string activation;
  RETURN_IF_ERROR(fields.String("hidden_activation", "gelu_pytorch_tanh", activation));
  if (activation != "gelu_pytorch_tanh") {
    return fields.Wrong("hidden_activation", "gelu_pytorch_tanh");
  }
  RETURN_IF_ERROR(CheckLlamaFeatures(fields, kGemma3Defaults));
  RETURN_IF_ERROR(fields.WantFalse({"use_bidirectional_attention"}));
  RETURN_IF_ERROR(ReadLlamaSizes(fields, kGemma3Defaults, draft));
  SetWhatGemmasHave(draft);
  draft.norm_weight_offset = 1.0;  // files hold the norm weights less 1
  double scalar = 0.0;
  RETURN_IF_ERROR(fields.Float("query_pre_attn_scalar", 256.0, scalar));
  if (!(scalar > 0.0)) return fields.Wrong("query_pre_attn_scalar", "more than 0");
  draft.every.attention.scale = 1.0 / std::sqrt(scalar);
  int64_t window = 0, pattern = 0;
  RETURN_IF_ERROR(fields.Int("sliding_window", 4096, window));
  RETURN_IF_ERROR(fields.Int("sliding_window_pattern", kGemma3Pattern, pattern));
  if (window < 1) return fields.Wrong("sliding_window", "at least 1");
  if (pattern < 1) return fields.Wrong("sliding_window_pattern", "at least 1");
  RETURN_IF_ERROR(ReadLayerWindows(
      fields, window, [&](int64_t layer) { return (layer + 1) % pattern != 0; }, draft));
  RETURN_IF_ERROR(ReadGemma3Ropes(fields, draft));
  RotateLocally(draft);
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, draft.every.attention.bias));
  return fields.Bool("tie_word_embeddings", true, draft.tie_word_embeddings);
}

absl::Status ReadGemma3Gguf(GgufFields& fields, ModelDraft& draft) {
  SetWhatGemmasHave(draft);
  // The 27B model has another attention scale. As in llama.cpp, it is recognised by its number of
  // layers.
  constexpr int64_t kLayersOf27B = 62;
  if (draft.num_hidden_layers == kLayersOf27B) {
    draft.every.attention.scale =
        1.0 / std::sqrt(static_cast<double>(draft.hidden_size) /
                        static_cast<double>(draft.every.attention.num_heads));
  }
  RopeConfig local = {.layout = draft.ropes[0].layout, .rope_dim = draft.ropes[0].rope_dim};
  RETURN_IF_ERROR(fields.Float("rope.freq_base_swa", 10000.0, local.theta));
  draft.ropes.push_back(local);
  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("attention.sliding_window", std::nullopt, window));
  draft.Vary([window](int64_t index, LayerSpec& layer) {
    if ((index + 1) % kGemma3Pattern != 0) layer.attention.window = window;
  });
  RotateLocally(draft);
  return absl::OkStatus();
}

void WriteGemma3Gguf(const ModelConfig& config, GgufKeys& keys) {
  const int64_t window = DifferentWindows(config).back();
  if (window != 0) keys.Int("attention.sliding_window", window);
  keys.Float("rope.freq_base_swa", config.ropes[1].theta);
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
    .hf_names = [](const LayerSpec&) { return WithGemma3Norms(kLlamaHfNames); },
    .read_gguf = ReadGemma3Gguf,
    .gguf_names = [](const LayerSpec&) { return WithGemma3GgufNorms(kGgufNames); },
    .write_gguf = WriteGemma3Gguf,
};

}  // namespace quire::engine
