// The Llama family: Llama 2 and 3, SmolLM2, Mistral (arXiv:2302.13971, 2307.09288). These models
// have RMSNorm, rotary positions, grouped KV heads and SwiGLU.

#include <array>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 2> kLlamaClasses = {"LlamaForCausalLM",
                                                           "MistralForCausalLM"};
constexpr LlamaDefaults kMistralDefaults = {.num_key_value_heads = 8,
                                            .max_position_embeddings = 4096 * 32,
                                            .sliding_window = 4096,
                                            .sliding_layers = SlidingLayers::kEvery};

absl::Status ReadLlama(const HfFields& fields, std::string_view hf_class, ModelDraft& draft) {
  const bool mistral = hf_class == "MistralForCausalLM";
  RETURN_IF_ERROR(ReadLlamaLike(fields, mistral ? kMistralDefaults : LlamaDefaults(), draft));
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, draft.every.attention.bias));
  return fields.Bool("mlp_bias", false, draft.every.feed_forward.bias);
}

// Refuses a window shorter than the context, because llama.cpp's graph would ignore the window.
absl::Status ReadLlamaGguf(GgufFields& fields, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("expert_count", 0, draft.every.feed_forward.experts.count));
  RETURN_IF_ERROR(fields.Int("expert_used_count", 0, draft.every.feed_forward.experts.per_token));
  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("attention.sliding_window", 0, window));
  if (window == 0 || window >= draft.max_position_embeddings) return absl::OkStatus();
  return fields.Error(
      "attention.sliding_window",
      absl::StrFormat("want none, or the context of %d at least, got %d: sliding windows are not "
                      "supported here",
                      draft.max_position_embeddings, window));
}

void WriteLlamaGguf(const ModelConfig& config, GgufKeys& keys) {
  const ExpertsSpec& experts = config.layers[0].feed_forward.experts;
  if (experts.count == 0) return;
  keys.Int("expert_count", experts.count);
  keys.Int("expert_used_count", experts.per_token);
}

TensorNames LlamaGgufNames(const LayerSpec&) {
  TensorNames names = kGgufNames;
  names.mixtures = {{kGgufStackedExperts,
                     {.router = "ffn_gate_inp.weight",
                      .gate = "ffn_gate.#.weight",
                      .up = "ffn_up.#.weight",
                      .down = "ffn_down.#.weight"}}};
  return names;
}

}  // namespace

const Architecture kLlama = {
    .name = "llama",
    .hf_classes = kLlamaClasses,
    .read_hf = ReadLlama,
    .hf_names = [](const LayerSpec&) { return kLlamaHfNames; },
    .gguf_rope_layout = kernels::RopeLayout::kInterleaved,
    .read_gguf = ReadLlamaGguf,
    .gguf_names = LlamaGgufNames,
    .write_gguf = WriteLlamaGguf,
};

}  // namespace quire::engine
