// SmolLM3: a Llama in which some layers, usually every fourth, do not rotate queries and keys
// (arXiv:2501.18795).

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"
#include "engine/model/architectures/shared_fields.h"
#include "engine/model/model_config_reader.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kSmolLm3Classes = {"SmolLM3ForCausalLM"};
// Without layer_types, the layers that do not rotate have the window, if there is one. With sliding
// layer_types that are not used, the answer of transformers depends on its kernel of attention.
absl::Status ReadWindows(const HfFields& fields, const std::vector<bool>& rotates,
                         ModelDraft& draft) {
  int64_t window = 0;
  bool used = false;
  RETURN_IF_ERROR(fields.Int("sliding_window", 0, window));
  RETURN_IF_ERROR(fields.Bool("use_sliding_window", false, used));
  if (window < 0) return fields.Wrong("sliding_window", "at least 0");
  const nlohmann::json* types = fields.Find("layer_types");
  if (!used && window > 0 && types != nullptr &&
      std::ranges::find(*types, "sliding_attention") != types->end()) {
    return fields.Wrong("use_sliding_window", "true beside layer_types with sliding_attention");
  }
  return ReadLayerPatterns(
      fields, kernels::AttentionPattern::Window(used ? window : 0),
      [&](int64_t layer) { return !rotates[static_cast<size_t>(layer)]; }, draft);
}

absl::Status ReadSmolLm3(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(ReadLlamaLike(fields,
                                {.num_key_value_heads = 4,
                                 .max_position_embeddings = 32768,
                                 .rope_theta = 2e6,
                                 .sliding_layers = SlidingLayers::kOther},
                                draft));
  ASSIGN_OR_RETURN(std::vector<bool> rotates, ReadRotatingLayers(fields, false, draft));
  RETURN_IF_ERROR(ReadWindows(fields, rotates, draft));
  draft.Vary([rotates = std::move(rotates)](int64_t index, LayerSpec& layer) {
    if (!rotates[static_cast<size_t>(index)]) layer.attention.rope = -1;
  });
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, draft.every.attention.bias));
  RETURN_IF_ERROR(fields.Bool("mlp_bias", false, draft.every.feed_forward.bias));
  return fields.Bool("tie_word_embeddings", true, draft.tie_word_embeddings);
}

// llama.cpp has the usual interval for every file.
absl::Status ReadSmolLm3Gguf(GgufFields&, ModelDraft& draft) {
  draft.Vary([](int64_t index, LayerSpec& layer) {
    if ((index + 1) % kNoRopeInterval == 0) layer.attention.rope = -1;
  });
  return absl::OkStatus();
}

}  // namespace

const Architecture kSmolLm3 = {.name = "smollm3",
                               .hf_classes = kSmolLm3Classes,
                               .read_hf = ReadSmolLm3,
                               .hf_names = [](const LayerSpec&) { return kLlamaHfNames; },
                               .gguf_rope_layout = kernels::RopeLayout::kInterleaved,
                               .read_gguf = ReadSmolLm3Gguf,
                               .gguf_names = [](const LayerSpec&) { return kGgufNames; },
                               .write_gguf = [](const ModelConfig&, GgufKeys&) {}};

}  // namespace quire::engine
