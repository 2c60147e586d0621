// Falcon (arXiv:2311.16867).
//   RW        has ALiBi, a KV head for each query head, biases, and feed-forward after attention.
//             The bias of ALiBi is rounded to bfloat16 and is added before the scores are scaled,
//             as in the published code.
//   7B        has one KV head, rotary positions, and one norm before attention and feed-forward,
//             which are in parallel.
//   40B, 11B  have grouped KV heads, and two norms or one.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/shared_fields.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kFalconClasses = {"FalconForCausalLM"};

absl::Status ReadHeads(const HfFields& fields, bool grouped, ModelConfig& config) {
  const int64_t heads = config.num_attention_heads;
  RETURN_IF_ERROR(ReadEvenHeadDim(fields, "num_attention_heads", "hidden_size", config));
  bool one = true;
  RETURN_IF_ERROR(fields.Bool("multi_query", true, one));
  config.num_key_value_heads = one ? 1 : heads;
  if (!grouped) return absl::OkStatus();
  return fields.Int("num_kv_heads", heads, config.num_key_value_heads);
}

absl::Status ReadFalconPositions(const HfFields& fields, ModelConfig& config) {
  bool alibi = false;
  RETURN_IF_ERROR(fields.Bool("alibi", false, alibi));
  if (alibi) {
    config.alibi_bias_max = 8.0;
    config.alibi_is_rounded = true;
    return absl::OkStatus();
  }
  config.rope = {.layout = kernels::RopeLayout::kHalfSplit, .rope_dim = config.head_dim};
  return ReadUnscaledTheta(fields, "rope_theta", config);
}

absl::Status ReadFalcon(const HfFields& fields, std::string_view, ModelConfig& config) {
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, config.vocab_size));
  RETURN_IF_ERROR(fields.Int("hidden_size", std::nullopt, config.hidden_size));
  RETURN_IF_ERROR(fields.Int("num_hidden_layers", std::nullopt, config.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("num_attention_heads", std::nullopt, config.num_attention_heads));
  RETURN_IF_ERROR(fields.Int("max_position_embeddings", 2048, config.max_position_embeddings));
  RETURN_IF_ERROR(fields.Int("ffn_hidden_size", 4 * config.hidden_size, config.intermediate_size));
  bool grouped = false;
  RETURN_IF_ERROR(fields.Bool("new_decoder_architecture", false, grouped));
  RETURN_IF_ERROR(ReadHeads(fields, grouped, config));
  RETURN_IF_ERROR(fields.Bool("parallel_attn", true, config.parallel_residual));
  if (grouped) config.parallel_residual = true;
  int64_t norms = grouped ? 2 : 1;
  RETURN_IF_ERROR(fields.Int("num_ln_in_parallel_attn", norms, norms));
  config.shared_norm = config.parallel_residual && !(grouped && norms == 2);
  config.norm = kernels::NormKind::kLayerNorm;
  config.norm_bias = true;
  RETURN_IF_ERROR(fields.Float("layer_norm_epsilon", 1e-5, config.norm_eps));
  bool bias = false;
  RETURN_IF_ERROR(fields.Bool("bias", false, bias));
  config.attention_bias = config.mlp_bias = bias;
  std::string activation;
  RETURN_IF_ERROR(fields.String("activation", "gelu", activation));
  if (activation != "gelu") return fields.Wrong("activation", "gelu");
  config.activation = kernels::Activation::kGelu;
  RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", true, config.tie_word_embeddings));
  return ReadFalconPositions(fields, config);
}

TensorNames FalconNames(const ModelConfig& config) {
  TensorNames names = {.prefix = "transformer.",
                       .embedding = "word_embeddings",
                       .final_norm = "ln_f",
                       .head = "lm_head",
                       .layer_prefix = "h.",
                       .attention_norm = "input_layernorm",
                       .qkv = "self_attention.query_key_value",
                       .qkv_layout = QkvLayout::kGrouped,
                       .o = "self_attention.dense",
                       .up = "mlp.dense_h_to_4h",
                       .down = "mlp.dense_4h_to_h"};
  if (!config.parallel_residual) {
    names.mlp_norm = "post_attention_layernorm";
  } else if (!config.shared_norm) {
    names.attention_norm = "ln_attn";
    names.mlp_norm = "ln_mlp";
  }
  return names;
}

// The fused projection is in another order than in Hugging Face's files: llama.cpp's converter
// stacks all queries, all keys and all values. llama.cpp's graph for Falcon has no ALiBi. It
// computes GELU by tanh, but Falcon was trained with exact GELU.
absl::Status ReadFalconGguf(GgufFields& fields, ModelConfig& config) {
  config.norm = kernels::NormKind::kLayerNorm;
  config.activation = kernels::Activation::kGelu;
  config.parallel_residual = true;
  config.shared_norm = !fields.HasTensor("blk.0.attn_norm_2.weight");
  return absl::OkStatus();
}

TensorNames FalconGgufNames(const ModelConfig& config) {
  TensorNames names = FusedGgufNames();
  names.mlp_norm = nullptr;
  if (!config.shared_norm) {
    names.mlp_norm = names.attention_norm;
    names.attention_norm = "attn_norm_2";
  }
  return names;
}

}  // namespace

const Architecture kFalcon = {
    .name = "falcon",
    .hf_classes = kFalconClasses,
    .read_hf = ReadFalcon,
    .hf_names = FalconNames,
    .read_gguf = ReadFalconGguf,
    .gguf_names = FalconGgufNames,
    .write_gguf = [](const ModelConfig&, GgufKeys&) {},
};

}  // namespace quire::engine
