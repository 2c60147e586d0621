// Phi-3 and Phi-4-mini (arXiv:2404.14219, 2503.01743): Llamas with fused projections. The models
// with a short context have a window. The models with a long context have longrope. Phi-4-mini
// rotates a part of each head.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kPhi3Classes = {"Phi3ForCausalLM"};

absl::Status ReadPhi3(const HfFields& fields, std::string_view, ModelDraft& draft) {
  return ReadLlamaLike(fields,
                       {.max_position_embeddings = 4096,
                        .partial_rotary = true,
                        .longrope_context = 4096,
                        .sliding_layers = SlidingLayers::kEvery},
                       draft);
}

TensorNames Phi3Names(const LayerSpec&) {
  TensorNames names = kLlamaHfNames;
  names.qkv = "self_attn.qkv_proj";
  names.gate = nullptr;
  names.up = "mlp.gate_up_proj";
  return names;
}

// The window is read because it is part of the model. llama.cpp ignores it, with a warning.
absl::Status ReadPhi3Gguf(GgufFields& fields, ModelDraft& draft) {
  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("attention.sliding_window", 0, window));
  if (window < draft.max_position_embeddings) {
    draft.every.attention.pattern = kernels::AttentionPattern::Window(window);
  }
  return absl::OkStatus();
}

void WritePhi3Gguf(const ModelConfig& config, GgufKeys& keys) {
  const int64_t window = config.layers[0].attention.pattern.tokens;
  if (window != 0) keys.Int("attention.sliding_window", window);
}

}  // namespace

const Architecture kPhi3 = {.name = "phi3",
                            .hf_classes = kPhi3Classes,
                            .read_hf = ReadPhi3,
                            .hf_names = Phi3Names,
                            .read_gguf = ReadPhi3Gguf,
                            .gguf_names = [](const LayerSpec&) { return FusedGgufNames(); },
                            .write_gguf = WritePhi3Gguf};

}  // namespace quire::engine
