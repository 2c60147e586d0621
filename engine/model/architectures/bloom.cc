// BLOOM (arXiv:2211.05100). It has LayerNorm, ALiBi, the tanh approximation of GELU, and biases
// everywhere. The embedding has a norm, too. The fused projection holds queries, keys and values
// head by head.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/shared_fields.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kBloomClasses = {"BloomForCausalLM"};

// Reads `key`, or reads `older` if `key` is absent, since transformers has two names for some
// fields.
absl::Status ReadEither(const HfFields& fields, const char* key, const char* older,
                        int64_t& value) {
  return fields.Int(fields.Find(key) != nullptr ? key : older, std::nullopt, value);
}

absl::Status ReadBloom(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, draft.vocab_size));
  RETURN_IF_ERROR(ReadEither(fields, "hidden_size", "n_embed", draft.hidden_size));
  RETURN_IF_ERROR(ReadEither(fields, "n_layer", "num_hidden_layers", draft.num_hidden_layers));
  RETURN_IF_ERROR(
      ReadEither(fields, "n_head", "num_attention_heads", draft.every.attention.num_heads));
  // This is the context with which the models were trained. The architecture itself has no limit.
  RETURN_IF_ERROR(fields.Int("seq_length", 2048, draft.max_position_embeddings));
  RETURN_IF_ERROR(ReadEvenHeadDim(fields, "n_head", "hidden_size", draft));
  draft.every.attention.num_kv_heads = draft.every.attention.num_heads;
  draft.every.feed_forward.inner_size = 4 * draft.hidden_size;
  draft.norm = kernels::NormKind::kLayerNorm;
  RETURN_IF_ERROR(fields.Float("layer_norm_epsilon", 1e-5, draft.norm_eps));
  draft.norm_bias = draft.every.attention.bias = draft.every.feed_forward.bias = true;
  draft.every.feed_forward.activation = kernels::Activation::kGeluTanh;
  draft.alibi_bias_max = 8.0;
  RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", true, draft.tie_word_embeddings));
  return fields.WantFalse({"apply_residual_connection_post_layernorm"});
}

constexpr TensorNames kBloomNames = {.prefix = "transformer.",
                                     .embedding = "word_embeddings",
                                     .embedding_norm = "word_embeddings_layernorm",
                                     .final_norm = "ln_f",
                                     .head = "lm_head",
                                     .layer_prefix = "h.",
                                     .attention_norm = "input_layernorm",
                                     .qkv = "self_attention.query_key_value",
                                     .qkv_layout = QkvLayout::kGrouped,
                                     .o = "self_attention.dense",
                                     .mlp_norm = "post_attention_layernorm",
                                     .up = "mlp.dense_h_to_4h",
                                     .down = "mlp.dense_4h_to_h"};

// GGUF files order the rows of the fused projection differently from Hugging Face's files:
// llama.cpp's converter stacks all queries, all keys and all values.
absl::Status ReadBloomGguf(GgufFields&, ModelDraft& draft) {
  draft.norm = kernels::NormKind::kLayerNorm;
  draft.every.feed_forward.activation = kernels::Activation::kGeluTanh;
  draft.alibi_bias_max = 8.0;
  return absl::OkStatus();
}

TensorNames BloomGgufNames(const LayerSpec&) {
  TensorNames names = FusedGgufNames();
  names.embedding_norm = "token_embd_norm";
  return names;
}

}  // namespace

const Architecture kBloom = {
    .name = "bloom",
    .hf_classes = kBloomClasses,
    .read_hf = ReadBloom,
    .hf_names = [](const LayerSpec&) { return kBloomNames; },
    .read_gguf = ReadBloomGguf,
    .gguf_names = BloomGgufNames,
    .write_gguf = [](const ModelConfig&, GgufKeys&) {},
};

}  // namespace quire::engine
