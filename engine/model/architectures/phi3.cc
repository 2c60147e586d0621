// Phi-3 (arXiv:2404.14219): Llama with fused projections, and in the short ones a window.

#include <array>

#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/llama_like.h"

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

}  // namespace

const Architecture kPhi3 = {
    .name = "phi3", .hf_classes = kPhi3Classes, .read_hf = ReadPhi3, .hf_names = Phi3Names};

}  // namespace quire::engine
