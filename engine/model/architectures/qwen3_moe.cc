// Qwen 3 with mixtures of experts (arXiv:2505.09388). The published models have a mixture in every
// layer.

#include <array>
#include <cstdint>
#include <set>

#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kQwen3MoeClasses = {"Qwen3MoeForCausalLM"};

// Gives the network `dense` to the layers without experts. These are the layers in mlp_only_layers,
// and all layers but every decoder_sparse_step-th.
absl::Status ReadDenseLayers(const HfFields& fields, const FeedForwardSpec& dense,
                             ModelDraft& draft) {
  int64_t step = 1;
  RETURN_IF_ERROR(fields.Int("decoder_sparse_step", 1, step));
  if (step < 1) return fields.Wrong("decoder_sparse_step", "at least 1");
  std::set<int64_t> chosen;
  if (const nlohmann::json* list = fields.Find("mlp_only_layers")) {
    if (!list->is_array()) return fields.Wrong("mlp_only_layers", "a list of layers");
    for (const nlohmann::json& layer : *list) {
      if (!layer.is_number_integer() || layer < 0 || layer >= draft.num_hidden_layers) {
        return fields.Wrong("mlp_only_layers", "numbers of layers, from 0 on");
      }
      chosen.insert(layer.get<int64_t>());
    }
  }
  draft.Vary([=](int64_t index, LayerSpec& layer) {
    if (chosen.contains(index) || (index + 1) % step != 0) layer.feed_forward = dense;
  });
  return absl::OkStatus();
}

absl::Status ReadQwen3Moe(const HfFields& fields, std::string_view, ModelDraft& draft) {
  ExpertsSpec experts;
  // num_local_experts is the name of num_experts in transformers 5.
  RETURN_IF_ERROR(fields.Int("num_local_experts", 128, experts.count));
  RETURN_IF_ERROR(fields.Int("num_experts", experts.count, experts.count));
  RETURN_IF_ERROR(fields.Int("num_experts_per_tok", 8, experts.per_token));
  bool sum_to_1 = false;
  RETURN_IF_ERROR(fields.Bool("norm_topk_prob", false, sum_to_1));
  if (!sum_to_1) experts.weights = kernels::ExpertWeights::kSoftmaxOfAll;
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, draft.every.attention.bias));
  draft.every.attention.qk_norm = QkNormScope::kHead;
  RETURN_IF_ERROR(ReadLlamaLike(
      fields, {.num_key_value_heads = 4, .max_position_embeddings = 32768, .mixture = true},
      draft));
  // ReadLlamaLike has read intermediate_size, the width of layers without experts.
  RETURN_IF_ERROR(ReadDenseLayers(fields, draft.every.feed_forward, draft));
  draft.every.feed_forward.experts = experts;
  return fields.Int("moe_intermediate_size", 768, draft.every.feed_forward.inner_size);
}

TensorNames Qwen3MoeNames(const LayerSpec&) {
  TensorNames names = WithHfQkNorms(kLlamaHfNames);
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
  TensorNames names = WithGgufQkNorms(kGgufNames);
  names.mixtures = {kGgufStackedExperts};
  return names;
}

// llama.cpp expects experts in every layer, so the keys describe the last layer. A model with dense
// layers is refused when the keys are read back.
void WriteQwen3MoeGguf(const ModelConfig& config, GgufKeys& keys) {
  const FeedForwardSpec& feed_forward = config.layers.back().feed_forward;
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
