// Refact (github.com/smallcloudai/refact). It has RMSNorm, ALiBi, one KV head and SwiGLU. Keys and
// values are in one projection, and gate and up in another.

#include <array>

#include "base/math.h"
#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/shared_fields.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kRefactClasses = {"GPTRefactForCausalLM"};

absl::Status ReadRefact(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, draft.vocab_size));
  RETURN_IF_ERROR(fields.Int("n_embd", std::nullopt, draft.hidden_size));
  RETURN_IF_ERROR(fields.Int("n_layer", std::nullopt, draft.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("n_head", std::nullopt, draft.every.attention.num_heads));
  RETURN_IF_ERROR(fields.Int("n_positions", 4096, draft.max_position_embeddings));
  RETURN_IF_ERROR(ReadEvenHeadDim(fields, "n_head", "n_embd", draft));
  bool multi_query = true;
  RETURN_IF_ERROR(fields.Bool("multi_query", true, multi_query));
  if (!multi_query) return fields.Wrong("multi_query", "true");
  draft.every.attention.num_kv_heads = 1;
  // The inner size is two thirds of n_inner, rounded up to a multiple of 256.
  int64_t inner = 0;
  RETURN_IF_ERROR(fields.Int("n_inner", 4 * draft.hidden_size, inner));
  if (inner < 1 || inner > int64_t{1} << 32) return fields.Wrong("n_inner", "a width");
  constexpr int64_t kStep = 256;
  draft.every.feed_forward.inner_size = base::RoundUp(2 * inner / 3, kStep);
  RETURN_IF_ERROR(fields.Float("layer_norm_epsilon", 1e-5, draft.norm_eps));
  draft.alibi_bias_max = 8.0;
  return fields.Bool("tie_word_embeddings", false, draft.tie_word_embeddings);
}

constexpr TensorNames kRefactNames = {.embedding = "transformer.wte",
                                      .final_norm = "ln_f",
                                      .head = "lm_head",
                                      .layer_prefix = "transformer.h.",
                                      .attention_norm = "ln_1",
                                      .q = "attn.q",
                                      .kv = "attn.kv",
                                      .o = "attn.c_proj",
                                      .mlp_norm = "ln_2",
                                      .up = "mlp.gate_up_proj",
                                      .down = "mlp.c_proj"};

absl::Status ReadRefactGguf(GgufFields&, ModelDraft& draft) {
  draft.alibi_bias_max = 8.0;
  return absl::OkStatus();
}

}  // namespace

const Architecture kRefact = {
    .name = "refact",
    .hf_classes = kRefactClasses,
    .read_hf = ReadRefact,
    .hf_names = [](const LayerSpec&) { return kRefactNames; },
    .read_gguf = ReadRefactGguf,
    .gguf_names = [](const LayerSpec&) { return kGgufNames; },
    .write_gguf = [](const ModelConfig&, GgufKeys&) {},
};

}  // namespace quire::engine
