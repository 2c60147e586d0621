#include "convert/llama_cpp.h"

#include <algorithm>

#include "absl/strings/str_format.h"

#include "convert/config_to_gguf.h"

namespace quire::convert {
namespace {

// Returns why llama.cpp cannot load a file of `config`, or nothing if it can.
std::string WhyNotLoaded(const engine::ModelConfig& config) {
  const engine::LayerSpec& layer = config.layers[0];
  const bool has_biases = layer.attention.bias || layer.feed_forward.bias;
  const std::string& name = config.architecture;
  if (name == "gpt_neox") {
    if (!layer.attention.bias || !layer.feed_forward.bias) return "it wants biases in every layer";
    if (config.tie_word_embeddings) return "it wants a head besides the embedding";
  }
  if (has_biases && (name == "falcon" || name == "qwen3" || name == "qwen3_moe")) {
    return "it has no biases in the layers of this architecture";
  }
  if (name == "mpt" && layer.attention.qk_norm != engine::QkNormScope::kNone &&
      layer.attention.num_kv_heads != layer.attention.num_heads) {
    return "it wants a norm of keys as wide as that of queries";
  }
  return "";
}

}  // namespace

LlamaCppReading ReadingOfLlamaCpp(const engine::ModelConfig& config) {
  LlamaCppReading reading = {.cannot_load = WhyNotLoaded(config)};
  if (config.architecture == "phi3") {
    const kernels::AttentionPattern& pattern = config.layers[0].attention.pattern;
    if (!pattern.sees_all() && pattern.tokens < config.max_position_embeddings) {
      reading.read_other.push_back(
          absl::StrFormat("without its window of %d tokens", pattern.tokens));
    }
  }
  const bool odd_yarn = std::ranges::any_of(config.ropes, [](const engine::RopeConfig& rope) {
    return rope.scaling == engine::RopeScaling::kYarn && !HasUsualYarn(rope);
  });
  if (odd_yarn) reading.read_other.push_back("with 32 and 1 for YaRN's beta_fast and beta_slow");
  return reading;
}

}  // namespace quire::convert
