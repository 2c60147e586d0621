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

absl::Status ReadHeads(const HfFields& fields, bool grouped, ModelDraft& draft) {
  const int64_t heads = draft.every.attention.num_heads;
  RETURN_IF_ERROR(ReadEvenHeadDim(fields, "num_attention_heads", "hidden_size", draft));
  bool one = true;
  RETURN_IF_ERROR(fields.Bool("multi_query", true, one));
  draft.every.attention.num_kv_heads = one ? 1 : heads;
  if (!grouped) return absl::OkStatus();
  return fields.Int("num_kv_heads", heads, draft.every.attention.num_kv_heads);
}

absl::Status ReadFalconPositions(const HfFields& fields, ModelDraft& draft) {
  bool alibi = false;
  RETURN_IF_ERROR(fields.Bool("alibi", false, alibi));
  if (alibi) {
    draft.alibi_bias_max = 8.0;
    draft.every.attention.alibi_is_rounded = true;
    return absl::OkStatus();
  }
  draft.ropes[0] = {.layout = kernels::RopeLayout::kHalfSplit,
                    .rope_dim = draft.every.attention.key_dim};
  return ReadUnscaledTheta(fields, "rope_theta", draft);
}

absl::Status ReadFalcon(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, draft.vocab_size));
  RETURN_IF_ERROR(fields.Int("hidden_size", std::nullopt, draft.hidden_size));
  RETURN_IF_ERROR(fields.Int("num_hidden_layers", std::nullopt, draft.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("num_attention_heads", std::nullopt, draft.every.attention.num_heads));
  RETURN_IF_ERROR(fields.Int("max_position_embeddings", 2048, draft.max_position_embeddings));
  RETURN_IF_ERROR(
      fields.Int("ffn_hidden_size", 4 * draft.hidden_size, draft.every.feed_forward.inner_size));
  bool grouped = false;
  RETURN_IF_ERROR(fields.Bool("new_decoder_architecture", false, grouped));
  RETURN_IF_ERROR(ReadHeads(fields, grouped, draft));
  bool parallel = true;
  RETURN_IF_ERROR(fields.Bool("parallel_attn", true, parallel));
  int64_t norms = grouped ? 2 : 1;
  RETURN_IF_ERROR(fields.Int("num_ln_in_parallel_attn", norms, norms));
  if (parallel || grouped) {
    draft.every.residual = grouped && norms == 2 ? Residual::kParallel : Residual::kParallelOneNorm;
  }
  draft.norm = kernels::NormKind::kLayerNorm;
  draft.norm_bias = true;
  RETURN_IF_ERROR(fields.Float("layer_norm_epsilon", 1e-5, draft.norm_eps));
  bool bias = false;
  RETURN_IF_ERROR(fields.Bool("bias", false, bias));
  draft.every.attention.bias = draft.every.feed_forward.bias = bias;
  std::string activation;
  RETURN_IF_ERROR(fields.String("activation", "gelu", activation));
  if (activation != "gelu") return fields.Wrong("activation", "gelu");
  draft.every.feed_forward.activation = kernels::Activation::kGelu;
  RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", true, draft.tie_word_embeddings));
  return ReadFalconPositions(fields, draft);
}

TensorNames FalconNames(const LayerSpec& layer) {
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
  if (layer.residual == Residual::kSerial) {
    names.mlp_norm = "post_attention_layernorm";
  } else if (layer.residual == Residual::kParallel) {
    names.attention_norm = "ln_attn";
    names.mlp_norm = "ln_mlp";
  }
  return names;
}

// GGUF files order the rows of the fused projection differently from Hugging Face's files:
// llama.cpp's converter stacks all queries, all keys and all values. llama.cpp's graph for Falcon
// has no ALiBi, so none is set here. The graph approximates GELU with tanh, but Falcon was trained
// with exact GELU, which is set here.
absl::Status ReadFalconGguf(GgufFields& fields, ModelDraft& draft) {
  draft.norm = kernels::NormKind::kLayerNorm;
  draft.every.feed_forward.activation = kernels::Activation::kGelu;
  draft.every.residual = fields.HasTensor("blk.0.attn_norm_2.weight") ? Residual::kParallel
                                                                      : Residual::kParallelOneNorm;
  return absl::OkStatus();
}

TensorNames FalconGgufNames(const LayerSpec& layer) {
  TensorNames names = FusedGgufNames();
  names.mlp_norm = nullptr;
  if (layer.residual != Residual::kParallelOneNorm) {
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
