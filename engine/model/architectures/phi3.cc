// Phi-3 (arXiv:2404.14219): a Llama with fused projections. The models with a short context have a
// window.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"
#include "engine/model/model_config_reader.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kPhi3Classes = {"Phi3ForCausalLM"};

absl::Status ReadPhi3(const HfFields& fields, std::string_view, ModelConfig& config) {
  return ReadLlamaLike(
      fields, {.max_position_embeddings = 4096, .sliding_layers = SlidingLayers::kEvery}, config);
}

TensorNames Phi3Names(const ModelConfig&) {
  TensorNames names = kLlamaHfNames;
  names.qkv = "self_attn.qkv_proj";
  names.gate = nullptr;
  names.up = "mlp.gate_up_proj";
  return names;
}

// The window is read because it is part of the model. llama.cpp ignores it, with a warning.
absl::Status ReadPhi3Gguf(GgufFields& fields, ModelConfig& config) {
  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("attention.sliding_window", 0, window));
  const bool slides = window != 0 && window < config.max_position_embeddings;
  if (slides && config.num_hidden_layers > 0 && config.num_hidden_layers <= kMaxLayers) {
    config.layer_windows.assign(static_cast<size_t>(config.num_hidden_layers), window);
  }
  return absl::OkStatus();
}

void WritePhi3Gguf(const ModelConfig& config, GgufKeys& keys) {
  if (!config.layer_windows.empty()) {
    keys.Int("attention.sliding_window", DifferentWindows(config).back());
  }
}

}  // namespace

const Architecture kPhi3 = {.name = "phi3",
                            .hf_classes = kPhi3Classes,
                            .read_hf = ReadPhi3,
                            .hf_names = Phi3Names,
                            .read_gguf = ReadPhi3Gguf,
                            .gguf_names = [](const ModelConfig&) { return FusedGgufNames(); },
                            .write_gguf = WritePhi3Gguf};

}  // namespace quire::engine
