// GPT-2 (Radford et al., 2019). It has LayerNorm, learned positions (a row for each position is
// added to the row of the token), the tanh approximation of GELU, and biases everywhere. Hugging
// Face's files hold the matrices transposed.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/shared_fields.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kGpt2Classes = {"GPT2LMHeadModel"};

void SetWhatGpt2sHave(ModelDraft& draft) {
  draft.norm = kernels::NormKind::kLayerNorm;
  draft.learned_positions = true;
  draft.every.feed_forward.activation = kernels::Activation::kGeluTanh;
}

absl::Status ReadGpt2(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, draft.vocab_size));
  RETURN_IF_ERROR(fields.Int("n_embd", std::nullopt, draft.hidden_size));
  RETURN_IF_ERROR(fields.Int("n_layer", std::nullopt, draft.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("n_head", std::nullopt, draft.every.attention.num_heads));
  RETURN_IF_ERROR(fields.Int("n_positions", 1024, draft.max_position_embeddings));
  RETURN_IF_ERROR(
      fields.Int("n_inner", 4 * draft.hidden_size, draft.every.feed_forward.inner_size));
  RETURN_IF_ERROR(ReadEvenHeadDim(fields, "n_head", "n_embd", draft));
  draft.every.attention.num_kv_heads = draft.every.attention.num_heads;
  SetWhatGpt2sHave(draft);
  RETURN_IF_ERROR(fields.Float("layer_norm_epsilon", 1e-5, draft.norm_eps));
  draft.norm_bias = draft.every.attention.bias = draft.every.feed_forward.bias = true;
  RETURN_IF_ERROR(ReadGelu(fields, "activation_function", "gelu_new", draft));
  RETURN_IF_ERROR(fields.WantFalse({"scale_attn_by_inverse_layer_idx", "add_cross_attention"}));
  bool scaled = true;
  RETURN_IF_ERROR(fields.Bool("scale_attn_weights", true, scaled));
  if (!scaled) draft.every.attention.scale = 1.0;
  return fields.Bool("tie_word_embeddings", true, draft.tie_word_embeddings);
}

constexpr TensorNames kGpt2Names = {.prefix = "transformer.",
                                    .embedding = "wte",
                                    .position_embedding = "wpe",
                                    .final_norm = "ln_f",
                                    .head = "lm_head",
                                    .layer_prefix = "h.",
                                    .layers_are_transposed = true,
                                    .attention_norm = "ln_1",
                                    .qkv = "attn.c_attn",
                                    .o = "attn.c_proj",
                                    .mlp_norm = "ln_2",
                                    .up = "mlp.c_fc",
                                    .down = "mlp.c_proj"};

absl::Status ReadGpt2Gguf(GgufFields&, ModelDraft& draft) {
  SetWhatGpt2sHave(draft);
  return absl::OkStatus();
}

TensorNames Gpt2GgufNames(const LayerSpec&) {
  TensorNames names = FusedGgufNames();
  names.position_embedding = "position_embd";
  return names;
}

}  // namespace

const Architecture kGpt2 = {
    .name = "gpt2",
    .hf_classes = kGpt2Classes,
    .read_hf = ReadGpt2,
    .hf_names = [](const LayerSpec&) { return kGpt2Names; },
    .read_gguf = ReadGpt2Gguf,
    .gguf_names = Gpt2GgufNames,
    .write_gguf = [](const ModelConfig&, GgufKeys&) {},
};

}  // namespace quire::engine
