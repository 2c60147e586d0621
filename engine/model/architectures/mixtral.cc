// Mixtral (arXiv:2401.04088): a Mistral with a mixture of experts in every layer.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/llama_like.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kMixtralClasses = {"MixtralForCausalLM"};

absl::Status ReadMixtral(const HfFields& fields, std::string_view, ModelConfig& config) {
  RETURN_IF_ERROR(fields.Int("num_local_experts", 8, config.num_experts));
  RETURN_IF_ERROR(fields.Int("num_experts_per_tok", 2, config.num_experts_per_tok));
  return ReadLlamaLike(fields,
                       {.num_key_value_heads = 8,
                        .max_position_embeddings = 4096 * 32,
                        .rms_norm_eps = 1e-5,
                        .rope_theta = 1e6,
                        .mixture = true,
                        .sliding_layers = SlidingLayers::kEvery},
                       config);
}

TensorNames MixtralNames(const ModelConfig&) {
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
    .gguf_names = [](const ModelConfig& config) { return kLlama.gguf_names(config); },
    .write_gguf = [](const ModelConfig& config,
                     GgufKeys& keys) { kLlama.write_gguf(config, keys); }};

}  // namespace quire::engine
