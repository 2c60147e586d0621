// Qwen 3 with a mixture of experts in every layer (arXiv:2505.09388).

#include <array>

#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kQwen3MoeClasses = {"Qwen3MoeForCausalLM"};

absl::Status CheckEveryLayerHasExperts(const HfFields& fields) {
  int64_t step = 1;
  RETURN_IF_ERROR(fields.Int("decoder_sparse_step", 1, step));
  if (step != 1) return fields.Wrong("decoder_sparse_step", "1: experts in every layer");
  const nlohmann::json* dense = fields.Find("mlp_only_layers");
  if (dense == nullptr || (dense->is_array() && dense->empty())) return absl::OkStatus();
  return fields.Wrong("mlp_only_layers", "an empty list: experts in every layer");
}

absl::Status ReadQwen3Moe(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(CheckEveryLayerHasExperts(fields));
  // num_local_experts is the name of num_experts in transformers 5.
  RETURN_IF_ERROR(fields.Int("num_local_experts", 128, draft.every.feed_forward.experts.count));
  RETURN_IF_ERROR(fields.Int("num_experts", draft.every.feed_forward.experts.count,
                             draft.every.feed_forward.experts.count));
  RETURN_IF_ERROR(fields.Int("num_experts_per_tok", 8, draft.every.feed_forward.experts.per_token));
  RETURN_IF_ERROR(
      fields.Bool("norm_topk_prob", false, draft.every.feed_forward.experts.weights_sum_to_1));
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, draft.every.attention.bias));
  draft.every.attention.qk_norm = QkNormScope::kHead;
  RETURN_IF_ERROR(ReadLlamaLike(
      fields, {.num_key_value_heads = 4, .max_position_embeddings = 32768, .mixture = true},
      draft));
  // ReadLlamaLike has read the width of layers without experts, but this model has no such layers.
  return fields.Int("moe_intermediate_size", 768, draft.every.feed_forward.inner_size);
}

TensorNames Qwen3MoeNames(const LayerSpec&) {
  TensorNames names = kLlamaHfNames;
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  names.mixtures = {{{.router = "mlp.gate.weight",
                      .gate = "mlp.experts.#.gate_proj.weight",
                      .up = "mlp.experts.#.up_proj.weight",
                      .down = "mlp.experts.#.down_proj.weight"},
                     kFusedExperts}};
  return names;
}

// llama.cpp's graph scales the weights of the chosen experts to sum to 1. The key
// feed_forward_length is for layers without experts.
absl::Status ReadQwen3MoeGguf(GgufFields& fields, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("expert_count", std::nullopt, draft.every.feed_forward.experts.count));
  RETURN_IF_ERROR(
      fields.Int("expert_used_count", std::nullopt, draft.every.feed_forward.experts.per_token));
  return fields.Int("expert_feed_forward_length", std::nullopt,
                    draft.every.feed_forward.inner_size);
}

TensorNames Qwen3MoeGgufNames(const LayerSpec&) {
  TensorNames names = kGgufNames;
  names.q_norm = "attn_q_norm";
  names.k_norm = "attn_k_norm";
  names.mixtures = {kGgufStackedExperts};
  return names;
}

void WriteQwen3MoeGguf(const ModelConfig& config, GgufKeys& keys) {
  const FeedForwardSpec& feed_forward = config.layers[0].feed_forward;
  keys.Int("expert_count", feed_forward.experts.count);
  keys.Int("expert_used_count", feed_forward.experts.per_token);
  keys.Int("expert_feed_forward_length", feed_forward.inner_size);
}

}  // namespace

const Architecture kQwen3Moe = {.name = "qwen3_moe",
                                .hf_classes = kQwen3MoeClasses,
                                .read_hf = ReadQwen3Moe,
                                .hf_names = Qwen3MoeNames,
                                .gguf_name = "qwen3moe",
                                .read_gguf = ReadQwen3MoeGguf,
                                .gguf_names = Qwen3MoeGgufNames,
                                .write_gguf = WriteQwen3MoeGguf};

}  // namespace quire::engine
