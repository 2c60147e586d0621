// Mixtral (arXiv:2401.04088): a Mistral with a mixture of experts in every layer.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/llama_like.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kMixtralClasses = {"MixtralForCausalLM"};

absl::Status ReadMixtral(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("num_local_experts", 8, draft.every.feed_forward.experts.count));
  RETURN_IF_ERROR(fields.Int("num_experts_per_tok", 2, draft.every.feed_forward.experts.per_token));
  return ReadLlamaLike(fields,
                       {.num_key_value_heads = 8,
                        .max_position_embeddings = 4096 * 32,
                        .rms_norm_eps = 1e-5,
                        .rope_theta = 1e6,
                        .mixture = true,
                        .sliding_layers = SlidingLayers::kEvery},
                       draft);
}

TensorNames MixtralNames(const LayerSpec&) {
  TensorNames names = kLlamaHfNames;
  names.mixtures = {{{.router = "block_sparse_moe.gate.weight",
                      .gate = "block_sparse_moe.experts.#.w1.weight",
                      .up = "block_sparse_moe.experts.#.w3.weight",
                      .down = "block_sparse_moe.experts.#.w2.weight"},
                     kFusedExperts}};
  return names;
}

}  // namespace

const Architecture kMixtral = {
    .name = "mixtral",
    .hf_classes = kMixtralClasses,
    .read_hf = ReadMixtral,
    .hf_names = MixtralNames,
    // llama.cpp treats Mixtral as a Llama.
    .gguf_name = "llama",
    .gguf_rope_layout = kernels::RopeLayout::kInterleaved,
    .gguf_names = [](const LayerSpec& layer) { return kLlama.gguf_names(layer); },
    .write_gguf = [](const ModelConfig& config,
                     GgufKeys& keys) { kLlama.write_gguf(config, keys); }};

}  // namespace quire::engine
