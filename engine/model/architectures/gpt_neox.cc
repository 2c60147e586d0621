// GPT-NeoX (arXiv:2204.06745) and Pythia (arXiv:2304.01373). They have LayerNorm, rotary positions
// on a part of each head, biases everywhere, and attention and feed-forward in parallel.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/shared_fields.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kGptNeoXClasses = {"GPTNeoXForCausalLM"};

// Reads rotary_pct and rotary_emb_base of transformers 4, or rope_parameters of transformers 5.
absl::Status ReadRotary(const HfFields& fields, ModelDraft& draft) {
  double share = 0.25;
  draft.ropes[0].layout = kernels::RopeLayout::kHalfSplit;
  RETURN_IF_ERROR(fields.Float("rotary_pct", share, share));
  RETURN_IF_ERROR(ReadUnscaledTheta(fields, "rotary_emb_base", draft));
  ASSIGN_OR_RETURN(const std::optional<HfFields> rope, fields.Object("rope_parameters"));
  if (rope) RETURN_IF_ERROR(rope->Float("partial_rotary_factor", share, share));
  if (!(share > 0.0 && share <= 1.0)) return fields.Wrong("rotary_pct", "more than 0, at most 1");
  draft.ropes[0].rope_dim =
      static_cast<int64_t>(static_cast<double>(draft.every.attention.key_dim) * share);
  return absl::OkStatus();
}

absl::Status ReadGptNeoX(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, draft.vocab_size));
  RETURN_IF_ERROR(fields.Int("hidden_size", std::nullopt, draft.hidden_size));
  RETURN_IF_ERROR(
      fields.Int("intermediate_size", std::nullopt, draft.every.feed_forward.inner_size));
  RETURN_IF_ERROR(fields.Int("num_hidden_layers", std::nullopt, draft.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("num_attention_heads", std::nullopt, draft.every.attention.num_heads));
  RETURN_IF_ERROR(fields.Int("max_position_embeddings", 2048, draft.max_position_embeddings));
  RETURN_IF_ERROR(ReadEvenHeadDim(fields, "num_attention_heads", "hidden_size", draft));
  draft.every.attention.num_kv_heads = draft.every.attention.num_heads;
  draft.norm = kernels::NormKind::kLayerNorm;
  RETURN_IF_ERROR(fields.Float("layer_norm_eps", 1e-5, draft.norm_eps));
  draft.norm_bias = draft.every.feed_forward.bias = true;
  RETURN_IF_ERROR(fields.Bool("attention_bias", true, draft.every.attention.bias));
  bool parallel = true;
  RETURN_IF_ERROR(fields.Bool("use_parallel_residual", true, parallel));
  if (parallel) draft.every.residual = Residual::kParallel;
  RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", false, draft.tie_word_embeddings));
  RETURN_IF_ERROR(ReadGelu(fields, "hidden_act", "gelu", draft));
  return ReadRotary(fields, draft);
}

constexpr TensorNames kGptNeoXNames = {.prefix = "gpt_neox.",
                                       .embedding = "embed_in",
                                       .final_norm = "final_layer_norm",
                                       .head = "embed_out",
                                       .layer_prefix = "layers.",
                                       .attention_norm = "input_layernorm",
                                       .qkv = "attention.query_key_value",
                                       .qkv_layout = QkvLayout::kGrouped,
                                       .o = "attention.dense",
                                       .mlp_norm = "post_attention_layernorm",
                                       .up = "mlp.dense_h_to_4h",
                                       .down = "mlp.dense_4h_to_h"};

absl::Status ReadGptNeoXGguf(GgufFields& fields, ModelDraft& draft) {
  draft.norm = kernels::NormKind::kLayerNorm;
  // The models were trained with exact GELU. llama.cpp uses the tanh approximation here.
  draft.every.feed_forward.activation = kernels::Activation::kGelu;
  bool parallel = true;
  RETURN_IF_ERROR(fields.Bool("use_parallel_residual", true, parallel));
  if (parallel) draft.every.residual = Residual::kParallel;
  return absl::OkStatus();
}

void WriteGptNeoXGguf(const ModelConfig& config, GgufKeys& keys) {
  keys.Bool("use_parallel_residual", config.layers[0].is_parallel());
}

}  // namespace

const Architecture kGptNeoX = {
    .name = "gpt_neox",
    .hf_classes = kGptNeoXClasses,
    .read_hf = ReadGptNeoX,
    .hf_names = [](const LayerSpec&) { return kGptNeoXNames; },
    .gguf_name = "gptneox",
    .read_gguf = ReadGptNeoXGguf,
    .gguf_names = [](const LayerSpec&) { return FusedGgufNames(); },
    .write_gguf = WriteGptNeoXGguf,
};

}  // namespace quire::engine
