// Gemma 2 (arXiv:2408.00118) and the text models of Gemma 3 (arXiv:2503.19786). They have norms
// before and after attention and feed-forward, GeGLU, and an embedding that is scaled up. In Gemma
// 2, every other layer has a window, and scores and logits have soft caps. In Gemma 3, each head of
// queries and keys has a norm. Five of six layers have a window, and rotary positions of shorter
// wavelengths. If a model reads text and images, only the part for text is served.

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

constexpr std::array<std::string_view, 1> kGemma2Classes = {"Gemma2ForCausalLM"};
constexpr std::array<std::string_view, 1> kGemma3Classes = {"Gemma3ForCausalLM"};
constexpr std::array<std::string_view, 1> kGemma3ImageClasses = {"Gemma3ForConditionalGeneration"};
constexpr LlamaDefaults kGemma2Defaults = {.vocab_size = 256000,
                                           .hidden_size = 2304,
                                           .intermediate_size = 9216,
                                           .num_hidden_layers = 26,
                                           .num_attention_heads = 8,
                                           .num_key_value_heads = 4,
                                           .head_dim = 256,
                                           .max_position_embeddings = 8192,
                                           .soft_caps = true};
constexpr LlamaDefaults kGemma3Defaults = {.vocab_size = 262208,
                                           .hidden_size = 2304,
                                           .intermediate_size = 9216,
                                           .num_hidden_layers = 26,
                                           .num_attention_heads = 8,
                                           .num_key_value_heads = 4,
                                           .head_dim = 256,
                                           .max_position_embeddings = 131072};
// In each run of this many layers, only the last layer sees all tokens.
constexpr int64_t kGemma2Pattern = 2;
constexpr int64_t kGemma3Pattern = 6;
constexpr int64_t kWindow = 4096;
// The caps of the published models. Files may omit them.
constexpr double kScoreCap = 50.0, kLogitCap = 30.0;

// Sets the members for which files have no field. transformers rounds the scale of the embedding to
// the dtype of the weights. For instance, at a width of 640 the scale is 25.298, and 25.25 in bf16.
// Here the scale is not rounded, as in llama.cpp and in transformers with float32.
void SetWhatGemmasHave(ModelDraft& draft) {
  draft.every.residual = Residual::kPostNorms;
  draft.every.feed_forward.activation = kernels::Activation::kGeluTanhMul;
  draft.embedding_scale = std::sqrt(static_cast<double>(draft.hidden_size));
}

// Gives the window to all layers but every `pattern`-th. Used for GGUF files, because they have no
// layer_types.
void SlideByPattern(int64_t window, int64_t pattern, ModelDraft& draft) {
  draft.Vary([=](int64_t index, LayerSpec& layer) {
    if ((index + 1) % pattern != 0) {
      layer.attention.pattern = kernels::AttentionPattern::Window(window);
    }
  });
}

// Sets the attention scale of a model in a GGUF file, which has no key for the scale. Only the 27B
// models do not have the usual scale, 1 / sqrt(head_dim). As in llama.cpp, the 27B models are
// recognised by their number of layers.
void ScaleByLayers(int64_t layers_of_27b, ModelDraft& draft) {
  if (draft.num_hidden_layers != layers_of_27b) return;
  draft.every.attention.scale =
      1.0 / std::sqrt(static_cast<double>(draft.hidden_size) /
                      static_cast<double>(draft.every.attention.num_heads));
}

// Reads the fields that Gemma 2 and Gemma 3 have in common. `pattern` is for files without
// layer_types.
absl::Status ReadGemma(const HfFields& fields, const LlamaDefaults& defaults, int64_t pattern,
                       ModelDraft& draft) {
  std::string activation;
  RETURN_IF_ERROR(fields.String("hidden_activation", "gelu_pytorch_tanh", activation));
  if (activation != "gelu_pytorch_tanh") {
    return fields.Wrong("hidden_activation", "gelu_pytorch_tanh");
  }
  RETURN_IF_ERROR(CheckLlamaFeatures(fields, defaults));
  RETURN_IF_ERROR(fields.WantFalse({"use_bidirectional_attention"}));
  RETURN_IF_ERROR(ReadLlamaSizes(fields, defaults, draft));
  SetWhatGemmasHave(draft);
  draft.norm_weight_offset = 1.0;  // files hold the norm weights less 1
  double scalar = 0.0;
  RETURN_IF_ERROR(fields.Float("query_pre_attn_scalar", 256.0, scalar));
  if (!(scalar > 0.0)) return fields.Wrong("query_pre_attn_scalar", "more than 0");
  draft.every.attention.scale = 1.0 / std::sqrt(scalar);
  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("sliding_window", kWindow, window));
  if (window < 1) return fields.Wrong("sliding_window", "at least 1");
  RETURN_IF_ERROR(ReadLayerPatterns(
      fields, kernels::AttentionPattern::Window(window),
      [&](int64_t layer) { return (layer + 1) % pattern != 0; }, draft));
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, draft.every.attention.bias));
  return fields.Bool("tie_word_embeddings", true, draft.tie_word_embeddings);
}

absl::Status ReadGemma2(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(ReadGemma(fields, kGemma2Defaults, kGemma2Pattern, draft));
  RETURN_IF_ERROR(ReadLlamaRope(fields, kGemma2Defaults, draft));
  const auto read_cap = [&](const char* key, double usual, double& cap) {
    return fields.Float(key, fields.Has(key) ? 0.0 : usual, cap);  // a null means no cap
  };
  RETURN_IF_ERROR(read_cap("attn_logit_softcapping", kScoreCap, draft.every.attention.soft_cap));
  return read_cap("final_logit_softcapping", kLogitCap, draft.logit_soft_cap);
}

absl::Status ReadGemma2Gguf(GgufFields& fields, ModelDraft& draft) {
  SetWhatGemmasHave(draft);
  ScaleByLayers(46, draft);
  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("attention.sliding_window", kWindow, window));
  SlideByPattern(window, kGemma2Pattern, draft);
  RETURN_IF_ERROR(
      fields.Float("attn_logit_softcapping", kScoreCap, draft.every.attention.soft_cap));
  return fields.Float("final_logit_softcapping", kLogitCap, draft.logit_soft_cap);
}

// llama.cpp divides by each cap, so a model without a cap must not be converted. The key of a
// missing cap is left out. When the keys are read back, that cap has its usual value, and
// CheckSameModel refuses the model.
void WriteGemma2Gguf(const ModelConfig& config, GgufKeys& keys) {
  const double cap = config.layers[0].attention.soft_cap;
  keys.Int("attention.sliding_window", DifferentPatterns(config).back().tokens);
  if (cap != 0.0) keys.Float("attn_logit_softcapping", cap);
  if (config.logit_soft_cap != 0.0) keys.Float("final_logit_softcapping", config.logit_soft_cap);
}

// Assigns ropes[1] to the layers that have a window.
void RotateLocally(ModelDraft& draft) {
  draft.Vary([](int64_t, LayerSpec& layer) {
    if (!layer.attention.pattern.sees_all()) layer.attention.rope = 1;
  });
}

absl::Status ReadGemma3Ropes(const HfFields& fields, ModelDraft& draft) {
  RopeConfig& global = draft.ropes[0];
  global.rope_dim = draft.every.attention.key_dim;
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
  int64_t pattern = 0;
  RETURN_IF_ERROR(fields.Int("sliding_window_pattern", kGemma3Pattern, pattern));
  if (pattern < 1) return fields.Wrong("sliding_window_pattern", "at least 1");
  RETURN_IF_ERROR(ReadGemma(fields, kGemma3Defaults, pattern, draft));
  draft.every.attention.qk_norm = QkNormScope::kHead;
  RETURN_IF_ERROR(ReadGemma3Ropes(fields, draft));
  RotateLocally(draft);
  return absl::OkStatus();
}

absl::Status ReadGemma3Images(const HfFields& fields, std::string_view hf_class,
                              ModelDraft& draft) {
  return ReadTextOfImageModel(
      fields, true, [&](const HfFields& text) { return ReadGemma3(text, hf_class, draft); }, draft);
}

absl::Status ReadGemma3Gguf(GgufFields& fields, ModelDraft& draft) {
  SetWhatGemmasHave(draft);
  draft.every.attention.qk_norm = QkNormScope::kHead;
  ScaleByLayers(62, draft);
  RopeConfig local = {.layout = draft.ropes[0].layout, .rope_dim = draft.ropes[0].rope_dim};
  RETURN_IF_ERROR(fields.Float("rope.freq_base_swa", 10000.0, local.theta));
  draft.ropes.push_back(local);
  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("attention.sliding_window", std::nullopt, window));
  SlideByPattern(window, kGemma3Pattern, draft);
  RotateLocally(draft);
  return absl::OkStatus();
}

void WriteGemma3Gguf(const ModelConfig& config, GgufKeys& keys) {
  const int64_t window = DifferentPatterns(config).back().tokens;
  if (window != 0) keys.Int("attention.sliding_window", window);
  keys.Float("rope.freq_base_swa", config.ropes[1].theta);
}

constexpr TensorNames GemmaNames() {
  TensorNames names = kLlamaHfNames;
  names.attention_post_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return names;
}

constexpr TensorNames GemmaGgufNames() {
  TensorNames names = kGgufNames;
  names.attention_post_norm = "post_attention_norm";
  names.mlp_post_norm = "post_ffw_norm";
  return names;
}

TensorNames Gemma3Names(const LayerSpec&) { return WithHfQkNorms(GemmaNames()); }

// transformers 5 moved the text model from `language_model.model` to `model.language_model`, and
// its head from `language_model.lm_head` to `lm_head`.
TensorNames Gemma3ImageNames(const LayerSpec& layer) {
  TensorNames names = Gemma3Names(layer);
  names.prefix = "model.language_model.";
  names.other_prefix = "language_model.model.";
  names.other_head = "language_model.lm_head";
  names.left_out = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                    "model.multi_modal_projector."};
  return names;
}

TensorNames Gemma3GgufNames(const LayerSpec&) { return WithGgufQkNorms(GemmaGgufNames()); }

}  // namespace

const Architecture kGemma2 = {
    .name = "gemma2",
    .hf_classes = kGemma2Classes,
    .read_hf = ReadGemma2,
    .hf_names = [](const LayerSpec&) { return GemmaNames(); },
    .read_gguf = ReadGemma2Gguf,
    .gguf_names = [](const LayerSpec&) { return GemmaGgufNames(); },
    .write_gguf = WriteGemma2Gguf,
};

const Architecture kGemma3 = {
    .name = "gemma3",
    .hf_classes = kGemma3Classes,
    .read_hf = ReadGemma3,
    .hf_names = Gemma3Names,
    .read_gguf = ReadGemma3Gguf,
    .gguf_names = Gemma3GgufNames,
    .write_gguf = WriteGemma3Gguf,
};

// A GGUF file of a Gemma 3 with images has only the text model, which kGemma3 reads. llama.cpp puts
// the image part in another file.
const Architecture kGemma3Images = {
    .name = "gemma3_images",
    .hf_classes = kGemma3ImageClasses,
    .read_hf = ReadGemma3Images,
    .hf_names = Gemma3ImageNames,
    .gguf_name = "gemma3",
    .gguf_names = Gemma3GgufNames,
    .write_gguf = WriteGemma3Gguf,
};

}  // namespace quire::engine
