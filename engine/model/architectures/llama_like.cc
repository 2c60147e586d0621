// Reads Llama's config.json in the spellings of transformers 4 and 5.

#include "engine/model/architectures/llama_like.h"

#include <optional>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/model/architectures/rope_fields.h"
#include "engine/model/architectures/shared_fields.h"

namespace quire::engine {
namespace {

// Reads the window. Mistral's class has a window unless sliding_window is null. Qwen's class has no
// window unless use_sliding_window is true.
absl::Status ReadWindow(const HfFields& fields, const LlamaDefaults& defaults, ModelDraft& draft) {
  const bool chosen = defaults.sliding_layers == SlidingLayers::kChosen;
  const int64_t context = draft.max_position_embeddings;
  int64_t window = fields.Has("sliding_window") ? 0 : defaults.sliding_window;
  RETURN_IF_ERROR(fields.Int("sliding_window", window, window));
  bool used = !chosen;
  RETURN_IF_ERROR(fields.Bool("use_sliding_window", used, used));
  if (!used || window >= context) window = 0;
  if (window != 0 && defaults.sliding_layers == SlidingLayers::kNone) {
    return fields.Error("sliding_window",
                        absl::StrFormat("null, or the context of %d at least", context),
                        absl::StrFormat("%d: windows are not supported here", window));
  }
  // A transformers class with a window in every layer ignores layer_types. Other programs may read
  // layer_types, and would then give other answers. So a file with layer_types is refused.
  if (defaults.sliding_layers == SlidingLayers::kEvery) {
    RETURN_IF_ERROR(fields.WantNull({"layer_types"}));
  }
  int64_t first = 0;
  if (chosen) RETURN_IF_ERROR(fields.Int("max_window_layers", 28, first));
  return ReadLayerPatterns(
      fields, kernels::AttentionPattern::Window(window),
      [&](int64_t layer) { return layer >= first; }, draft);
}

}  // namespace

// Refuses rope_scaling beside other rope_parameters, since transformers takes rope_scaling then,
// and loses the rope_theta of the others.
absl::Status CheckOneRope(const HfFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<HfFields> now, fields.Object("rope_parameters"));
  ASSIGN_OR_RETURN(const std::optional<HfFields> before, fields.Object("rope_scaling"));
  if (!now || !before || now->object() == before->object()) return absl::OkStatus();
  return fields.Wrong("rope_scaling", "null, or the same as rope_parameters");
}

absl::Status ReadLlamaRope(const HfFields& fields, const LlamaDefaults& defaults,
                           ModelDraft& draft) {
  draft.ropes[0].layout = kernels::RopeLayout::kHalfSplit;
  draft.ropes[0].rope_dim = draft.every.attention.key_dim;
  RETURN_IF_ERROR(fields.Float("rope_theta", defaults.rope_theta, draft.ropes[0].theta));
  RETURN_IF_ERROR(CheckOneRope(fields));
  const char* key = fields.Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  ASSIGN_OR_RETURN(const std::optional<HfFields> scaling, fields.Object(key));
  RopeOutside outside = {.partial_rotary = defaults.partial_rotary,
                         .longrope_context = defaults.longrope_context};
  if (defaults.partial_rotary) {
    double part = 1.0;
    RETURN_IF_ERROR(fields.Float("partial_rotary_factor", 1.0, part));
    if (scaling) RETURN_IF_ERROR(scaling->Float("partial_rotary_factor", part, part));
    if (!(part > 0.0 && part <= 1.0)) return fields.Wrong("partial_rotary_factor", "0 to 1");
    draft.ropes[0].rope_dim =
        static_cast<int64_t>(static_cast<double>(draft.every.attention.key_dim) * part);
  }
  if (defaults.longrope_context != 0) {
    RETURN_IF_ERROR(fields.Int("original_max_position_embeddings", defaults.longrope_context,
                               outside.longrope_context));
    if (outside.longrope_context < 2) {
      return fields.Wrong("original_max_position_embeddings", "at least 2");
    }
  }
  return scaling ? ReadRopeParameters(*scaling, draft, draft.ropes[0], outside) : absl::OkStatus();
}

absl::Status CheckLlamaFeatures(const HfFields& fields, const LlamaDefaults& defaults) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    int64_t experts = 0;
    RETURN_IF_ERROR(fields.Int(key, 0, experts));
    if (experts != 0 && !defaults.mixture) {
      return fields.Wrong(key, "0: a mixture of experts is not supported");
    }
  }
  RETURN_IF_ERROR(fields.WantFalse(
      {"rope_interleaved", "alibi", "qk_norm", "parallel_attn", "is_encoder_decoder"}));
  if (!defaults.unweighted_qk_norm) RETURN_IF_ERROR(fields.WantFalse({"use_qk_norm"}));
  if (!defaults.partial_rotary) RETURN_IF_ERROR(fields.WantOne({"partial_rotary_factor"}));
  RETURN_IF_ERROR(fields.WantOne({"rope_pct", "logit_scale", "logits_scaling",
                                  "embedding_multiplier", "residual_multiplier"}));
  if (!defaults.soft_caps) {
    RETURN_IF_ERROR(fields.WantNoLimit({"attn_logit_softcapping", "final_logit_softcapping"}));
  }
  return fields.WantNoLimit({"clip_qkv"});
}

absl::Status ReadLlamaSizes(const HfFields& fields, const LlamaDefaults& defaults,
                            ModelDraft& draft) {
  const auto size = [&](const char* key, int64_t usual, int64_t& out) {
    return fields.Int(key, usual == 0 ? std::nullopt : std::optional(usual), out);
  };
  RETURN_IF_ERROR(size("vocab_size", defaults.vocab_size, draft.vocab_size));
  RETURN_IF_ERROR(size("hidden_size", defaults.hidden_size, draft.hidden_size));
  RETURN_IF_ERROR(
      size("intermediate_size", defaults.intermediate_size, draft.every.feed_forward.inner_size));
  RETURN_IF_ERROR(size("num_hidden_layers", defaults.num_hidden_layers, draft.num_hidden_layers));
  RETURN_IF_ERROR(
      size("num_attention_heads", defaults.num_attention_heads, draft.every.attention.num_heads));
  const int64_t heads = draft.every.attention.num_heads;
  const bool written = fields.Has("num_key_value_heads");  // a null means num_attention_heads
  RETURN_IF_ERROR(fields.Int(
      "num_key_value_heads",
      written || defaults.num_key_value_heads == 0 ? heads : defaults.num_key_value_heads,
      draft.every.attention.num_kv_heads));
  if (fields.Find("head_dim") == nullptr && defaults.head_dim == 0 &&
      (heads <= 0 || draft.hidden_size % heads != 0)) {
    return fields.Wrong("num_attention_heads",
                        absl::StrFormat("a divisor of hidden_size %d", draft.hidden_size));
  }
  const int64_t even = heads > 0 ? draft.hidden_size / heads : 0;
  int64_t head_dim = 0;
  RETURN_IF_ERROR(
      fields.Int("head_dim", defaults.head_dim != 0 ? defaults.head_dim : even, head_dim));
  draft.every.attention.set_head_dim(head_dim);
  RETURN_IF_ERROR(fields.Int("max_position_embeddings", defaults.max_position_embeddings,
                             draft.max_position_embeddings));
  return fields.Float("rms_norm_eps", defaults.rms_norm_eps, draft.norm_eps);
}

absl::Status ReadLlamaLike(const HfFields& fields, const LlamaDefaults& defaults,
                           ModelDraft& draft) {
  std::string activation;
  RETURN_IF_ERROR(fields.String("hidden_act", "silu", activation));
  if (activation != "silu" && activation != "swish") return fields.Wrong("hidden_act", "silu");
  RETURN_IF_ERROR(CheckLlamaFeatures(fields, defaults));
  RETURN_IF_ERROR(ReadLlamaSizes(fields, defaults, draft));
  if (defaults.sliding_layers != SlidingLayers::kOther) {
    RETURN_IF_ERROR(ReadWindow(fields, defaults, draft));
  }
  RETURN_IF_ERROR(ReadLlamaRope(fields, defaults, draft));
  return fields.Bool("tie_word_embeddings", false, draft.tie_word_embeddings);
}

}  // namespace quire::engine
