// Qwen 2 and 2.5 (arXiv:2407.10671, 2412.15115) are Llamas with biases on queries, keys and values.
// Qwen 3 (arXiv:2505.09388) has no biases, but a norm of each head of queries and keys.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kQwen2Classes = {"Qwen2ForCausalLM"};
constexpr std::array<std::string_view, 1> kQwen3Classes = {"Qwen3ForCausalLM"};

absl::Status ReadQwen2(const HfFields& fields, std::string_view, ModelDraft& draft) {
  draft.every.attention.bias = true;
  return ReadLlamaLike(fields,
                       {.num_key_value_heads = 32,
                        .max_position_embeddings = 32768,
                        .sliding_window = 4096,
                        .sliding_layers = SlidingLayers::kChosen},
                       draft);
}

absl::Status ReadQwen3(const HfFields& fields, std::string_view, ModelDraft& draft) {
  draft.every.attention.qk_norm = QkNormScope::kHead;
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, draft.every.attention.bias));
  return ReadLlamaLike(fields,
                       {.num_key_value_heads = 32,
                        .head_dim = 128,
                        .max_position_embeddings = 32768,
                        .sliding_window = 4096,
                        .sliding_layers = SlidingLayers::kChosen},
                       draft);
}

// Reads nothing, because the keys that all architectures share describe a Qwen completely. The
// rotary rows of a Qwen are in the order of Hugging Face's files, so gguf_rope_layout is not set
// below.
absl::Status ReadQwenGguf(GgufFields&, ModelDraft&) { return absl::OkStatus(); }

}  // namespace

const Architecture kQwen2 = {.name = "qwen2",
                             .hf_classes = kQwen2Classes,
                             .read_hf = ReadQwen2,
                             .hf_names = [](const LayerSpec&) { return kLlamaHfNames; },
                             .read_gguf = ReadQwenGguf,
                             .gguf_names = [](const LayerSpec&) { return kGgufNames; },
                             .write_gguf = [](const ModelConfig&, GgufKeys&) {}};

const Architecture kQwen3 = {
    .name = "qwen3",
    .hf_classes = kQwen3Classes,
    .read_hf = ReadQwen3,
    .hf_names = [](const LayerSpec&) { return WithHfQkNorms(kLlamaHfNames); },
    .read_gguf = ReadQwenGguf,
    .gguf_names = [](const LayerSpec&) { return WithGgufQkNorms(kGgufNames); },
    .write_gguf = [](const ModelConfig&, GgufKeys&) {}};

}  // namespace quire::engine
