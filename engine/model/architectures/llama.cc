// The Llama family: Llama 2 and 3, SmolLM2, Mistral without a window (arXiv:2302.13971,
// 2307.09288): RMSNorm, rotary positions, grouped KV heads, SwiGLU. Its config.json in the
// spellings of transformers 4 and 5.

#include <array>
#include <optional>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/weights/printable.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 2> kLlamaClasses = {"LlamaForCausalLM",
                                                           "MistralForCausalLM"};

// What a class takes for keys that config.json leaves out.
struct Defaults {
  int64_t num_key_value_heads;  // 0: num_attention_heads
  int64_t max_position_embeddings;
  int64_t sliding_window;  // 0: none
};
constexpr Defaults kLlamaDefaults = {0, 2048, 0};
constexpr Defaults kMistralDefaults = {8, 4096 * 32, 4096};

// Members whose only supported value is the one that leaves the feature out.
absl::Status CheckFeatures(const HfFields& fields) {
  std::string activation;
  RETURN_IF_ERROR(fields.String("hidden_act", "silu", activation));
  if (activation != "silu" && activation != "swish") return fields.Wrong("hidden_act", "silu");
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    int64_t experts = 0;
    RETURN_IF_ERROR(fields.Int(key, 0, experts));
    if (experts != 0) return fields.Wrong(key, "0: a mixture of experts is not supported");
  }
  RETURN_IF_ERROR(fields.WantFalse({"rope_interleaved", "alibi", "use_qk_norm", "qk_norm",
                                    "parallel_attn", "is_encoder_decoder"}));
  RETURN_IF_ERROR(
      fields.WantOne({"partial_rotary_factor", "rope_pct", "logit_scale", "logits_scaling",
                      "embedding_multiplier", "residual_multiplier"}));
  return fields.WantNull({"attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"});
}

absl::Status ReadSizes(const HfFields& fields, const Defaults& defaults, ModelConfig& config) {
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, config.vocab_size));
  RETURN_IF_ERROR(fields.Int("hidden_size", std::nullopt, config.hidden_size));
  RETURN_IF_ERROR(fields.Int("intermediate_size", std::nullopt, config.intermediate_size));
  RETURN_IF_ERROR(fields.Int("num_hidden_layers", std::nullopt, config.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("num_attention_heads", std::nullopt, config.num_attention_heads));
  const int64_t heads = config.num_attention_heads;
  const bool written = fields.Has("num_key_value_heads");  // null: num_attention_heads
  RETURN_IF_ERROR(fields.Int(
      "num_key_value_heads",
      written || defaults.num_key_value_heads == 0 ? heads : defaults.num_key_value_heads,
      config.num_key_value_heads));
  if (fields.Find("head_dim") == nullptr && (heads <= 0 || config.hidden_size % heads != 0)) {
    return fields.Wrong("num_attention_heads",
                        absl::StrFormat("a divisor of hidden_size %d", config.hidden_size));
  }
  RETURN_IF_ERROR(
      fields.Int("head_dim", heads > 0 ? config.hidden_size / heads : 0, config.head_dim));
  RETURN_IF_ERROR(fields.Int("max_position_embeddings", defaults.max_position_embeddings,
                             config.max_position_embeddings));
  return fields.Float("rms_norm_eps", 1e-6, config.norm_eps);
}

// Mistral's class has a window unless config.json says null.
absl::Status CheckWindow(const HfFields& fields, const Defaults& defaults, int64_t context) {
  int64_t window = fields.Has("sliding_window") ? 0 : defaults.sliding_window;
  RETURN_IF_ERROR(fields.Int("sliding_window", window, window));
  bool used = true;  // Qwen's switch, kept by some conversions
  RETURN_IF_ERROR(fields.Bool("use_sliding_window", true, used));
  if (used && window != 0 && window < context) {
    return fields.Error("sliding_window",
                        absl::StrFormat("null, or the context of %d at least", context),
                        absl::StrFormat("%d: sliding windows are not supported", window));
  }
  return absl::OkStatus();
}

// `scaling` is rope_scaling of transformers 4, or rope_parameters of 5, which holds theta too.
absl::Status ReadScaling(const HfFields& fields, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  std::string type;
  RETURN_IF_ERROR(fields.String("type", "default", type));  // the older spelling
  RETURN_IF_ERROR(fields.String("rope_type", type, type));
  RETURN_IF_ERROR(fields.Float("rope_theta", rope.theta, rope.theta));
  RETURN_IF_ERROR(fields.WantOne({"partial_rotary_factor"}));
  for (const auto& [layer_type, parameters] : fields.object().items()) {
    if (parameters.is_object())
      return fields.Wrong(layer_type, "the same parameters for all layers");
  }
  if (type == "default") return absl::OkStatus();
  if (type == "linear") {
    RETURN_IF_ERROR(fields.Float("factor", std::nullopt, rope.factor));
    if (rope.factor != 1.0) rope.scaling = RopeScaling::kLinear;
    return absl::OkStatus();
  }
  if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    RETURN_IF_ERROR(fields.Float("factor", std::nullopt, rope.factor));
    RETURN_IF_ERROR(fields.Float("low_freq_factor", std::nullopt, rope.low_freq_factor));
    RETURN_IF_ERROR(fields.Float("high_freq_factor", std::nullopt, rope.high_freq_factor));
    return fields.Int("original_max_position_embeddings", std::nullopt,
                      rope.original_max_position_embeddings);
  }
  return fields.Error("rope_type", "default, linear or llama3",
                      Printable(type) + ": not supported");
}

absl::Status ReadRope(const HfFields& fields, ModelConfig& config) {
  config.rope.layout = kernels::RopeLayout::kHalfSplit;
  config.rope.rope_dim = config.head_dim;
  RETURN_IF_ERROR(fields.Float("rope_theta", 10000.0, config.rope.theta));
  const char* key = fields.Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  ASSIGN_OR_RETURN(const std::optional<HfFields> scaling, fields.Object(key));
  return scaling ? ReadScaling(*scaling, config) : absl::OkStatus();
}

absl::Status ReadLlama(const HfFields& fields, std::string_view hf_class, ModelConfig& config) {
  const Defaults& defaults = hf_class == "MistralForCausalLM" ? kMistralDefaults : kLlamaDefaults;
  RETURN_IF_ERROR(CheckFeatures(fields));
  RETURN_IF_ERROR(ReadSizes(fields, defaults, config));
  RETURN_IF_ERROR(CheckWindow(fields, defaults, config.max_position_embeddings));
  RETURN_IF_ERROR(ReadRope(fields, config));
  RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", false, config.tie_word_embeddings));
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, config.attention_bias));
  return fields.Bool("mlp_bias", false, config.mlp_bias);
}

}  // namespace

const Architecture kLlama = {
    .name = "llama",
    .hf_classes = kLlamaClasses,
    .read_hf = ReadLlama,
    .hf_names = {.prefix = "model.",
                 .embedding = "embed_tokens",
                 .final_norm = "norm",
                 .head = "lm_head",
                 .layer_prefix = "layers.",
                 .attention_norm = "input_layernorm",
                 .q = "self_attn.q_proj",
                 .k = "self_attn.k_proj",
                 .v = "self_attn.v_proj",
                 .o = "self_attn.o_proj",
                 .mlp_norm = "post_attention_layernorm",
                 .gate = "mlp.gate_proj",
                 .up = "mlp.up_proj",
                 .down = "mlp.down_proj"},
    .gguf_names = {.embedding = "token_embd",
                   .final_norm = "output_norm",
                   .head = "output",
                   .layer_prefix = "blk.",
                   .attention_norm = "attn_norm",
                   .q = "attn_q",
                   .k = "attn_k",
                   .v = "attn_v",
                   .o = "attn_output",
                   .mlp_norm = "ffn_norm",
                   .gate = "ffn_gate",
                   .up = "ffn_up",
                   .down = "ffn_down"},
};

}  // namespace quire::engine
