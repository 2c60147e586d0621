// Llama 4 (ai.meta.com/blog/llama-4-multimodal-intelligence, 2025). Three of four layers rotate
// queries and keys, and see only the keys of the query's chunk. The other layers do not rotate, see
// every key, and scale queries by their position. A mixture scales the inputs of its experts, and
// shares one network among all tokens. Some layers may have a dense network instead. If a model
// reads text and images, only the part for text is served.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/llama_like.h"
#include "engine/model/architectures/shared_fields.h"
#include "engine/model/model_config_reader.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kLlama4Classes = {"Llama4ForCausalLM"};
constexpr std::array<std::string_view, 1> kLlama4ImageClasses = {"Llama4ForConditionalGeneration"};
constexpr LlamaDefaults kLlama4Defaults = {.vocab_size = 202048,
                                           .hidden_size = 5120,
                                           .intermediate_size = 8192,
                                           .num_hidden_layers = 48,
                                           .num_attention_heads = 40,
                                           .num_key_value_heads = 8,
                                           .head_dim = 128,
                                           .max_position_embeddings = 131072,
                                           .rms_norm_eps = 1e-5,
                                           .rope_theta = 500000.0,
                                           .mixture = true,
                                           .unweighted_qk_norm = true,
                                           .sliding_layers = SlidingLayers::kOther};
// The values of the published models. GGUF files do not hold them, and llama.cpp assumes them.
constexpr int64_t kChunk = 8192;
constexpr QueryGrowth kGrowth = {.interval = 8192, .rate = 0.1};
// llama.cpp recognises Maverick, which has no norm of queries and keys, by this number of experts.
constexpr int64_t kExpertsOfMaverick = 128;

// Llama 4 rotates queries and keys, then normalises them. The decoder normalises first. Both orders
// have the same result if the rotation keeps the length of a vector.
bool KeepsLengths(const RopeConfig& rope) {
  return rope.scaling != RopeScaling::kYarn && rope.scaling != RopeScaling::kLongRope;
}
constexpr std::string_view kScalings = "the type default, linear, dynamic or llama3";

// Layers that rotate queries and keys get a norm of queries and keys if `normed` is true. The other
// layers get the growth of queries.
void VaryAttention(std::vector<bool> rotates, bool normed, const QueryGrowth& growth,
                   ModelDraft& draft) {
  draft.Vary([=, rotates = std::move(rotates)](int64_t index, LayerSpec& layer) {
    if (rotates[static_cast<size_t>(index)]) {
      if (normed) layer.attention.qk_norm = QkNormScope::kHeadUnweighted;
    } else {
      layer.attention.rope = -1;
      layer.attention.query_growth = growth;
    }
  });
}

absl::Status ReadLlama4Attention(const HfFields& fields, ModelDraft& draft) {
  // transformers refuses a null, too.
  int64_t chunk = 0;
  RETURN_IF_ERROR(
      fields.Int("attention_chunk_size", fields.Has("attention_chunk_size") ? 0 : kChunk, chunk));
  if (chunk < 1) return fields.Wrong("attention_chunk_size", "at least 1");
  ASSIGN_OR_RETURN(std::vector<bool> rotates, ReadRotatingLayers(fields, true, draft));
  RETURN_IF_ERROR(ReadLayerPatterns(
      fields, kernels::AttentionPattern::Chunk(chunk),
      [&](int64_t layer) { return rotates[static_cast<size_t>(layer)]; }, draft));

  bool normed = true, grows = true;
  QueryGrowth growth;
  RETURN_IF_ERROR(fields.Bool("use_qk_norm", true, normed));
  RETURN_IF_ERROR(fields.Bool("attn_temperature_tuning", true, grows));
  RETURN_IF_ERROR(fields.Int("floor_scale", kGrowth.interval, growth.interval));
  RETURN_IF_ERROR(fields.Float("attn_scale", kGrowth.rate, growth.rate));
  if (growth.interval < 1) return fields.Wrong("floor_scale", "at least 1");
  if (normed && !KeepsLengths(draft.ropes[0])) {
    const bool spelled_new = fields.Find("rope_parameters") != nullptr;
    return fields.Wrong(spelled_new ? "rope_parameters" : "rope_scaling", kScalings);
  }
  VaryAttention(std::move(rotates), normed, grows ? growth : QueryGrowth(), draft);
  return fields.Bool("attention_bias", false, draft.every.attention.bias);
}

// Returns for each layer whether it has a mixture of experts.
absl::StatusOr<std::vector<bool>> ReadMixtureLayers(const HfFields& fields,
                                                    const ModelDraft& draft) {
  const int64_t num_layers = draft.num_hidden_layers;
  int64_t step = 1;
  RETURN_IF_ERROR(fields.Int("interleave_moe_layer_step", 1, step));
  if (step < 1) return fields.Wrong("interleave_moe_layer_step", "at least 1");
  std::vector<bool> mixtures(static_cast<size_t>(std::clamp<int64_t>(num_layers, 0, kMaxLayers)));
  const nlohmann::json* list = fields.Find("moe_layers");
  if (list == nullptr) {
    for (size_t i = 0; i < mixtures.size(); ++i)
      mixtures[i] = (static_cast<int64_t>(i) + 1) % step == 0;
    return mixtures;
  }
  if (!list->is_array()) return fields.Wrong("moe_layers", "a list of layers");
  for (const nlohmann::json& layer : *list) {
    if (!layer.is_number_integer() || layer < 0 || layer >= std::ssize(mixtures)) {
      return fields.Wrong("moe_layers", "numbers of layers, from 0 on");
    }
    mixtures[layer.get<size_t>()] = true;
  }
  return mixtures;
}

// Sets the members for which files have no field. The shared network is as wide as an expert.
void SetWhatMixturesHave(FeedForwardSpec& mixture) {
  mixture.experts.weights = kernels::ExpertWeights::kLogistic;
  mixture.experts.weights_scale_input = true;
  mixture.experts.shared_inner_size = mixture.inner_size;
}

absl::Status ReadLlama4Mixtures(const HfFields& fields, ModelDraft& draft) {
  FeedForwardSpec& mixture = draft.every.feed_forward;
  FeedForwardSpec dense = mixture;
  RETURN_IF_ERROR(fields.Int("intermediate_size_mlp", 16384, dense.inner_size));
  SetWhatMixturesHave(mixture);
  RETURN_IF_ERROR(fields.Int("num_local_experts", 16, mixture.experts.count));
  if (mixture.experts.count == 0) return fields.Wrong("num_local_experts", "at least 1");
  RETURN_IF_ERROR(fields.Int("num_experts_per_tok", 1, mixture.experts.per_token));
  ASSIGN_OR_RETURN(std::vector<bool> mixtures, ReadMixtureLayers(fields, draft));
  draft.Vary([=, mixtures = std::move(mixtures)](int64_t index, LayerSpec& layer) {
    if (!mixtures[static_cast<size_t>(index)]) layer.feed_forward = dense;
  });
  return absl::OkStatus();
}

absl::Status ReadLlama4(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(ReadLlamaLike(fields, kLlama4Defaults, draft));
  draft.ropes[0].layout = kernels::RopeLayout::kInterleaved;
  RETURN_IF_ERROR(ReadLlama4Attention(fields, draft));
  return ReadLlama4Mixtures(fields, draft);
}

absl::Status ReadLlama4Images(const HfFields& fields, std::string_view hf_class,
                              ModelDraft& draft) {
  return ReadTextOfImageModel(
      fields, false, [&](const HfFields& text) { return ReadLlama4(text, hf_class, draft); },
      draft);
}

// llama.cpp lets every fourth layer see all keys without rotation, and divides the positions of the
// others into chunks of 8,192, whatever the file says.
absl::Status ReadLlama4Gguf(GgufFields& fields, ModelDraft& draft) {
  int64_t chunk = 0, period = 0;
  RETURN_IF_ERROR(fields.Int("attention.sliding_window", kChunk, chunk));
  RETURN_IF_ERROR(fields.Int("attention.sliding_window_pattern", kNoRopeInterval, period));
  if (chunk != kChunk) {
    return fields.Error("attention.sliding_window",
                        absl::StrFormat("want %d or none, got %d", kChunk, chunk));
  }
  if (period != kNoRopeInterval) {
    return fields.Error("attention.sliding_window_pattern",
                        absl::StrFormat("want %d, got %d", kNoRopeInterval, period));
  }
  RETURN_IF_ERROR(fields.Float("rope.freq_base_swa", draft.ropes[0].theta, draft.ropes[0].theta));
  FeedForwardSpec& mixture = draft.every.feed_forward;
  const FeedForwardSpec dense = mixture;
  int64_t step = 0;
  RETURN_IF_ERROR(fields.Int("expert_count", std::nullopt, mixture.experts.count));
  RETURN_IF_ERROR(fields.Int("expert_used_count", std::nullopt, mixture.experts.per_token));
  RETURN_IF_ERROR(fields.Int("expert_feed_forward_length", std::nullopt, mixture.inner_size));
  RETURN_IF_ERROR(fields.Int("interleave_moe_layer_step", std::nullopt, step));
  if (mixture.experts.count == 0) return fields.Error("expert_count", "want at least 1, got 0");
  if (step < 1) {
    return fields.Error("interleave_moe_layer_step",
                        absl::StrFormat("want at least 1, got %d", step));
  }
  SetWhatMixturesHave(mixture);
  const bool normed = mixture.experts.count != kExpertsOfMaverick;
  if (normed && !KeepsLengths(draft.ropes[0])) {
    return fields.Error("rope.scaling.type", absl::StrCat("want ", base::ToAbsl(kScalings)));
  }
  const int64_t num_layers = std::clamp<int64_t>(draft.num_hidden_layers, 0, kMaxLayers);
  std::vector<bool> rotates(static_cast<size_t>(num_layers));
  for (int64_t i = 0; i < num_layers; ++i) {
    rotates[static_cast<size_t>(i)] = (i + 1) % kNoRopeInterval != 0;
  }
  draft.Vary([=](int64_t index, LayerSpec& layer) {
    if ((index + 1) % step != 0) layer.feed_forward = dense;
    if (rotates[static_cast<size_t>(index)]) {
      layer.attention.pattern = kernels::AttentionPattern::Chunk(kChunk);
    }
  });
  VaryAttention(rotates, normed, kGrowth, draft);
  return absl::OkStatus();
}

// Writes no key for values that llama.cpp assumes, such as the chunk size. CheckSameModel refuses a
// model with other values when the keys are read back.
void WriteLlama4Gguf(const ModelConfig& config, GgufKeys& keys) {
  const auto first = std::ranges::find_if(config.layers, &LayerSpec::has_experts);
  if (first == config.layers.end()) return;
  keys.Int("expert_count", first->feed_forward.experts.count);
  keys.Int("expert_used_count", first->feed_forward.experts.per_token);
  keys.Int("expert_feed_forward_length", first->feed_forward.inner_size);
  keys.Int("interleave_moe_layer_step", first - config.layers.begin() + 1);
}

constexpr TensorNames Llama4Names() {
  TensorNames names = kLlamaHfNames;
  names.gate = "feed_forward.gate_proj";
  names.up = "feed_forward.up_proj";
  names.down = "feed_forward.down_proj";
  names.shared_gate = "feed_forward.shared_expert.gate_proj";
  names.shared_up = "feed_forward.shared_expert.up_proj";
  names.shared_down = "feed_forward.shared_expert.down_proj";
  names.mixtures[0] = {.router = "feed_forward.router.weight",
                       .up = "feed_forward.experts.gate_up_proj",
                       .down = "feed_forward.experts.down_proj",
                       .transposed = true};
  return names;
}

TensorNames Llama4ImageNames(const LayerSpec&) {
  TensorNames names = Llama4Names();
  names.prefix = "language_model.model.";
  names.head = "language_model.lm_head";
  names.left_out = {"vision_model.", "multi_modal_projector."};
  return names;
}

TensorNames Llama4GgufNames(const LayerSpec&) {
  TensorNames names = kGgufNames;
  names.shared_gate = "ffn_gate_shexp";
  names.shared_up = "ffn_up_shexp";
  names.shared_down = "ffn_down_shexp";
  names.mixtures = {kGgufStackedExperts};
  return names;
}

}  // namespace

const Architecture kLlama4 = {.name = "llama4",
                              .hf_classes = kLlama4Classes,
                              .read_hf = ReadLlama4,
                              .hf_names = [](const LayerSpec&) { return Llama4Names(); },
                              .gguf_rope_layout = kernels::RopeLayout::kInterleaved,
                              .read_gguf = ReadLlama4Gguf,
                              .gguf_names = Llama4GgufNames,
                              .write_gguf = WriteLlama4Gguf};

const Architecture kLlama4Images = {.name = "llama4_images",
                                    .hf_classes = kLlama4ImageClasses,
                                    .read_hf = ReadLlama4Images,
                                    .hf_names = Llama4ImageNames,
                                    .gguf_name = "llama4",
                                    .gguf_rope_layout = kernels::RopeLayout::kInterleaved,
                                    .gguf_names = Llama4GgufNames,
                                    .write_gguf = WriteLlama4Gguf};

}  // namespace quire::engine
