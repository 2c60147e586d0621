// gpt-oss (arXiv:2508.10925) with weights that are not packed in MXFP4. Every layer has a mixture
// of experts, with biases and a clamped gate. Heads have sinks. Layers 0, 2, ... have a window.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/llama_like.h"
#include "engine/model/architectures/shared_fields.h"
#include "kernels/activation.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kGptOssClasses = {"GptOssForCausalLM"};
constexpr LlamaDefaults kGptOssDefaults = {.vocab_size = 201088,
                                           .hidden_size = 2880,
                                           .intermediate_size = 2880,
                                           .num_hidden_layers = 36,
                                           .num_attention_heads = 64,
                                           .num_key_value_heads = 8,
                                           .head_dim = 64,
                                           .max_position_embeddings = 131072,
                                           .rms_norm_eps = 1e-5,
                                           .rope_theta = 150000.0,
                                           .mixture = true,
                                           .sliding_layers = SlidingLayers::kOther};

// Sets the YaRN of a file that has no rotary parameters.
void SetUsualYarn(RopeConfig& rope) {
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 32.0;
  rope.original_max_position_embeddings = 4096;
  rope.truncate = false;
  rope.attention_factor = YarnAttentionFactor(rope.factor);
}

absl::Status ReadFeedForward(const HfFields& fields, FeedForwardSpec& spec) {
  spec.activation = kernels::Activation::kClampedSiluMul;
  spec.bias = true;
  spec.experts.router_bias = true;
  constexpr double kAlpha = 1.702;  // kernels::kClampedSiluAlpha
  double alpha = kAlpha;
  RETURN_IF_ERROR(fields.Float("swiglu_alpha", kAlpha, alpha));
  if (alpha != kAlpha) return fields.Wrong("swiglu_alpha", "1.702");
  RETURN_IF_ERROR(fields.Float("swiglu_limit", 7.0, spec.activation_limit));
  // num_experts is a second name of num_local_experts in transformers.
  RETURN_IF_ERROR(fields.Int("num_experts", 128, spec.experts.count));
  RETURN_IF_ERROR(fields.Int("num_local_experts", spec.experts.count, spec.experts.count));
  if (spec.experts.count == 0) return fields.Wrong("num_local_experts", "at least 1");
  return fields.Int("num_experts_per_tok", 4, spec.experts.per_token);
}

absl::Status ReadGptOss(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(ReadLlamaLike(fields, kGptOssDefaults, draft));
  if (fields.Find("rope_scaling") == nullptr && fields.Find("rope_parameters") == nullptr) {
    SetUsualYarn(draft.ropes[0]);
  }
  RETURN_IF_ERROR(ReadFeedForward(fields, draft.every.feed_forward));
  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("sliding_window", fields.Has("sliding_window") ? 0 : 128, window));
  if (window < 0) return fields.Wrong("sliding_window", "at least 0");
  RETURN_IF_ERROR(ReadLayerPatterns(
      fields, kernels::AttentionPattern::Window(window),
      [](int64_t layer) { return layer % 2 == 0; }, draft));
  draft.every.attention.sinks = true;
  return fields.Bool("attention_bias", true, draft.every.attention.bias);
}

TensorNames GptOssNames(const LayerSpec&) {
  TensorNames names = kLlamaHfNames;
  names.sinks = "self_attn.sinks";
  names.mixtures[0] = {.router = "mlp.router.weight",
                       .up = "mlp.experts.gate_up_proj",
                       .down = "mlp.experts.down_proj",
                       .router_bias = "mlp.router.bias",
                       .up_bias = "mlp.experts.gate_up_proj_bias",
                       .down_bias = "mlp.experts.down_proj_bias",
                       .transposed = true,
                       .in_turns = true};
  return names;
}

}  // namespace

// GGUF files of gpt-oss are neither read nor written. Their weights are in MXFP4, which no kernel
// reads. In addition, RopeConfig::truncate is true for every GGUF file, and false for gpt-oss.
const Architecture kGptOss = {.name = "gpt_oss",
                              .hf_classes = kGptOssClasses,
                              .read_hf = ReadGptOss,
                              .hf_names = GptOssNames};

}  // namespace quire::engine
