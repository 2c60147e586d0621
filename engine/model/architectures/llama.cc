// The Llama family: Llama 2 and 3, SmolLM2, Mistral (arXiv:2302.13971,
// 2307.09288): RMSNorm, rotary positions, grouped KV heads, SwiGLU.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/llama_like.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 2> kLlamaClasses = {"LlamaForCausalLM",
                                                           "MistralForCausalLM"};
constexpr LlamaDefaults kMistralDefaults = {.num_key_value_heads = 8,
                                            .max_position_embeddings = 4096 * 32,
                                            .sliding_window = 4096,
                                            .sliding_layers = SlidingLayers::kEvery};

absl::Status ReadLlama(const HfFields& fields, std::string_view hf_class, ModelConfig& config) {
  const bool mistral = hf_class == "MistralForCausalLM";
  RETURN_IF_ERROR(ReadLlamaLike(fields, mistral ? kMistralDefaults : LlamaDefaults(), config));
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, config.attention_bias));
  return fields.Bool("mlp_bias", false, config.mlp_bias);
}

}  // namespace

const Architecture kLlama = {
    .name = "llama",
    .hf_classes = kLlamaClasses,
    .read_hf = ReadLlama,
    .hf_names = [](const ModelConfig&) { return kLlamaHfNames; },
    .gguf_names = {.embedding = "token_embd",
                   .final_norm = "output_norm",
                   .head = "output",
                   .layer_prefix = "blk.",
                   .attention_norm = "attn_norm",
                   .q = "attn_q",
                   .k = "attn_k",
                   .v = "attn_v",
                   .o = "attn_output",
                   .mlp_norm = "ffn_norm",
                   .gate = "ffn_gate",
                   .up = "ffn_up",
                   .down = "ffn_down",
                   .mixtures = {{{.router = "ffn_gate_inp.weight",
                                  .gate = "ffn_gate_exps.weight",
                                  .up = "ffn_up_exps.weight",
                                  .down = "ffn_down_exps.weight"},
                                 {.router = "ffn_gate_inp.weight",
                                  .gate = "ffn_gate.#.weight",
                                  .up = "ffn_up.#.weight",
                                  .down = "ffn_down.#.weight"}}}},
};

}  // namespace quire::engine
