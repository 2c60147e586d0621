// MiMo-V2-Flash. Values are shorter than keys, and scaled. Most layers have a window. These layers
// have sinks, rotary positions of their own, and twice as many KV heads. Rotary positions turn only
// a part of each query and key. All layers but the first have a mixture of experts, whose choice
// has a bias. The published weights are in FP8; none have been run.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/llama_like.h"
#include "engine/model/architectures/rope_fields.h"
#include "engine/model/architectures/shared_fields.h"
#include "engine/model/model_config_reader.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kMimoClasses = {"MiMoV2FlashForCausalLM"};
constexpr LlamaDefaults kMimoDefaults = {.vocab_size = 152576,
                                         .hidden_size = 4096,
                                         .intermediate_size = 16384,
                                         .num_hidden_layers = 48,
                                         .num_attention_heads = 64,
                                         .num_key_value_heads = 4,
                                         .head_dim = 192,
                                         .max_position_embeddings = 131072,
                                         .rms_norm_eps = 1e-5,
                                         .mixture = true,
                                         .partial_rotary = true};
constexpr double kRotaryPart = 0.334;

// Refuses a key that has another value. The class of transformers ignores the key, but other
// programs read it.
template <typename T>
absl::Status WantEqual(const HfFields& fields, const char* key, const T& value) {
  const nlohmann::json* found = fields.Find(key);
  if (found == nullptr || *found == nlohmann::json(value)) return absl::OkStatus();
  return fields.Wrong(key, nlohmann::json(value).dump());
}

int64_t RopeDim(const ModelDraft& draft, double part) {
  return static_cast<int64_t>(static_cast<double>(draft.every.attention.key_dim) * part);
}

absl::Status ReadRope(const HfFields& fields, const char* layer_type, double theta,
                      const ModelDraft& draft, RopeConfig& rope) {
  rope.layout = kernels::RopeLayout::kHalfSplit;
  rope.theta = theta;
  double part = kRotaryPart;
  ASSIGN_OR_RETURN(const std::optional<HfFields> all, fields.Object("rope_parameters"));
  if (all) {
    ASSIGN_OR_RETURN(const std::optional<HfFields> own, all->Object(layer_type));
    if (!own) return all->Wrong(layer_type, "an object");
    RETURN_IF_ERROR(own->Float("partial_rotary_factor", kRotaryPart, part));
    RETURN_IF_ERROR(ReadRopeParameters(*own, draft, rope, {.partial_rotary = true}));
    if (rope.scaling != RopeScaling::kNone) return own->Wrong("rope_type", "default");
  }
  if (!(part > 0.0 && part <= 1.0)) return fields.Wrong("partial_rotary_factor", "0 to 1");
  rope.rope_dim = RopeDim(draft, part);
  return absl::OkStatus();
}

// Checks the keys that only the published config.json has. transformers derives or fixes their
// values.
absl::Status CheckPublishedKeys(const HfFields& fields, const ModelDraft& draft) {
  const AttentionSpec& attention = draft.every.attention;
  RETURN_IF_ERROR(WantEqual(fields, "swa_num_attention_heads", attention.num_heads));
  RETURN_IF_ERROR(WantEqual(fields, "swa_num_key_value_heads", 2 * attention.num_kv_heads));
  RETURN_IF_ERROR(WantEqual(fields, "swa_head_dim", attention.key_dim));
  RETURN_IF_ERROR(WantEqual(fields, "swa_v_head_dim", attention.value_dim));
  RETURN_IF_ERROR(WantEqual(fields, "layernorm_epsilon", draft.norm_eps));
  RETURN_IF_ERROR(WantEqual(fields, "rope_theta", draft.ropes[0].theta));
  RETURN_IF_ERROR(WantEqual(fields, "swa_rope_theta", draft.ropes[1].theta));
  if (fields.Find("partial_rotary_factor") != nullptr) {
    double part = 0.0;
    RETURN_IF_ERROR(fields.Float("partial_rotary_factor", std::nullopt, part));
    if (!(part > 0.0 && part <= 1.0) || RopeDim(draft, part) != draft.ropes[0].rope_dim) {
      return fields.Wrong("partial_rotary_factor", "that of rope_parameters, or else 0.334");
    }
  }
  RETURN_IF_ERROR(fields.WantNull({"rope_scaling"}));
  RETURN_IF_ERROR(WantEqual(fields, "add_swa_attention_sink_bias", true));
  RETURN_IF_ERROR(WantEqual(fields, "add_full_attention_sink_bias", false));
  RETURN_IF_ERROR(WantEqual(fields, "scoring_func", "sigmoid"));
  RETURN_IF_ERROR(WantEqual(fields, "topk_method", "noaux_tc"));
  RETURN_IF_ERROR(WantEqual(fields, "n_shared_experts", 0));
  return absl::OkStatus();
}

// Returns true if the layer has a window in a model without layer_types.
bool HasWindow(int64_t layer) { return layer != 0 && (layer + 1) % 6 != 0; }

// Checks hybrid_layer_pattern, which is 1 for each layer with a window. ReadLayerPatterns must run
// first.
absl::Status CheckHybridLayers(const HfFields& fields, int64_t num_layers) {
  if (num_layers < 1 || num_layers > kMaxLayers) return absl::OkStatus();  // see Complete()
  const nlohmann::json* types = fields.Find("layer_types");
  std::vector<int> has_window;
  for (int64_t i = 0; i < num_layers; ++i) {
    has_window.push_back(
        types == nullptr ? HasWindow(i) : (*types)[static_cast<size_t>(i)] == "sliding_attention");
  }
  return WantEqual(fields, "hybrid_layer_pattern", has_window);
}

absl::Status ReadMixture(const HfFields& fields, FeedForwardSpec& sparse) {
  ExpertsSpec& experts = sparse.experts;
  RETURN_IF_ERROR(fields.Int("num_local_experts", 256, experts.count));
  RETURN_IF_ERROR(fields.Int("n_routed_experts", experts.count, experts.count));
  if (experts.count == 0) return fields.Wrong("n_routed_experts", "at least 1");
  RETURN_IF_ERROR(fields.Int("num_experts_per_tok", 8, experts.per_token));
  RETURN_IF_ERROR(fields.WantOne({"n_group", "topk_group", "routed_scaling_factor"}));
  RETURN_IF_ERROR(WantEqual(fields, "norm_topk_prob", true));
  experts.weights = kernels::ExpertWeights::kNormedLogistic;
  experts.choice_bias = true;
  return fields.Int("moe_intermediate_size", 2048, sparse.inner_size);
}

// Gives the network `sparse` to the layers that are "sparse" in mlp_layer_types, by default all but
// the first.
absl::Status ReadSparseLayers(const HfFields& fields, const FeedForwardSpec& sparse,
                              ModelDraft& draft) {
  const int64_t num_layers = draft.num_hidden_layers;
  if (num_layers < 1 || num_layers > kMaxLayers) return absl::OkStatus();  // see Complete()
  const nlohmann::json* types = fields.Find("mlp_layer_types");
  if (types != nullptr && (!types->is_array() || std::ssize(*types) != num_layers)) {
    return fields.Wrong("mlp_layer_types", "one for each of num_hidden_layers");
  }
  std::vector<bool> is_sparse(static_cast<size_t>(num_layers));
  for (size_t i = 0; i < is_sparse.size(); ++i) {
    is_sparse[i] = i != 0;
    if (types == nullptr) continue;
    is_sparse[i] = (*types)[i] == "sparse";
    if (!is_sparse[i] && (*types)[i] != "dense") {
      return fields.Wrong("mlp_layer_types", "dense and sparse");
    }
  }
  RETURN_IF_ERROR(
      WantEqual(fields, "moe_layer_freq", std::vector<int>(is_sparse.begin(), is_sparse.end())));
  draft.Vary([sparse, is_sparse = std::move(is_sparse)](int64_t index, LayerSpec& layer) {
    if (is_sparse[static_cast<size_t>(index)]) layer.feed_forward = sparse;
  });
  return absl::OkStatus();
}

absl::Status ReadMimo(const HfFields& fields, std::string_view, ModelDraft& draft) {
  std::string activation;
  RETURN_IF_ERROR(fields.String("hidden_act", "silu", activation));
  if (activation != "silu") return fields.Wrong("hidden_act", "silu");
  RETURN_IF_ERROR(CheckLlamaFeatures(fields, kMimoDefaults));
  RETURN_IF_ERROR(ReadLlamaSizes(fields, kMimoDefaults, draft));
  AttentionSpec& attention = draft.every.attention;
  // Layers with a window have twice as many KV heads, and the doubled number must not overflow.
  if (attention.num_kv_heads < 1 || attention.num_kv_heads > INT32_MAX) {
    return fields.Wrong("num_key_value_heads", "at least 1");
  }
  RETURN_IF_ERROR(fields.Int("v_head_dim", 128, attention.value_dim));
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, attention.bias));
  const bool unscaled = fields.Has("attention_value_scale") &&
                        fields.Find("attention_value_scale") == nullptr;  // null
  RETURN_IF_ERROR(
      fields.Float("attention_value_scale", unscaled ? 1.0 : 0.707, attention.value_scale));
  draft.ropes.emplace_back();
  RETURN_IF_ERROR(ReadRope(fields, "full_attention", 5e6, draft, draft.ropes[0]));
  RETURN_IF_ERROR(ReadRope(fields, "sliding_attention", 1e4, draft, draft.ropes[1]));
  RETURN_IF_ERROR(CheckPublishedKeys(fields, draft));

  int64_t window = 0;
  RETURN_IF_ERROR(fields.Int("sliding_window", 129, window));
  if (window < 1) return fields.Wrong("sliding_window", "at least 1");
  if (fields.Find("sliding_window_size") != nullptr) {
    // This key counts the tokens before the query.
    RETURN_IF_ERROR(fields.Int("sliding_window_size", std::nullopt, window));
    if (window < 0 || window >= INT32_MAX) {
      return fields.Wrong("sliding_window_size", "at least 0, below 2^31 - 1");
    }
    ++window;
  }
  RETURN_IF_ERROR(
      ReadLayerPatterns(fields, kernels::AttentionPattern::Window(window), HasWindow, draft));
  RETURN_IF_ERROR(CheckHybridLayers(fields, draft.num_hidden_layers));
  draft.Vary([](int64_t, LayerSpec& layer) {
    if (layer.attention.pattern.sees_all()) return;
    layer.attention.num_kv_heads *= 2;
    layer.attention.sinks = true;
    layer.attention.rope = 1;
  });
  FeedForwardSpec sparse = draft.every.feed_forward;
  RETURN_IF_ERROR(ReadMixture(fields, sparse));
  RETURN_IF_ERROR(ReadSparseLayers(fields, sparse, draft));
  return fields.Bool("tie_word_embeddings", false, draft.tie_word_embeddings);
}

TensorNames MimoNames(const LayerSpec&) {
  TensorNames names = kLlamaHfNames;
  names.sinks = "self_attn.attention_sink_bias";
  names.left_out = {"model.mtp."};
  MixtureNames fused = kFusedExperts;
  fused.choice_bias = "mlp.gate.e_score_correction_bias";
  names.mixtures = {{{.router = "mlp.gate.weight",
                      .gate = "mlp.experts.#.gate_proj.weight",
                      .up = "mlp.experts.#.up_proj.weight",
                      .down = "mlp.experts.#.down_proj.weight",
                      .choice_bias = fused.choice_bias},
                     fused}};
  return names;
}

}  // namespace

// GGUF files of MiMo-V2-Flash are neither read nor written.
const Architecture kMimoV2Flash = {.name = "mimo_v2_flash",
                                   .hf_classes = kMimoClasses,
                                   .read_hf = ReadMimo,
                                   .hf_names = MimoNames};

}  // namespace quire::engine
