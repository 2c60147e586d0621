#pragma once

// Llama's config.json and tensor names, which other families use too.

#include "engine/model/hf_fields.h"
#include "engine/model/model_draft.h"
#include "engine/model/tensor_names.h"

namespace quire::engine {

// The layers that use the sliding window in a model class of Hugging Face's transformers library.
enum class SlidingLayers {
  kNone,  // a window is refused
  kEvery,
  kOther,   // windows are not read here, but by the reader of the architecture
  kChosen,  // only with use_sliding_window: layers in layer_types, or from max_window_layers on
};

// The values that the config class of an architecture, in Hugging Face's transformers library,
// assumes for keys missing from config.json.
struct LlamaDefaults {
  // Sizes. If a size is 0 here, config.json must have it.
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  int64_t num_hidden_layers = 0, num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // 0: num_attention_heads
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool mixture = false;             // false: experts are refused
  bool partial_rotary = false;      // false: a partial_rotary_factor other than 1 is refused
  int64_t longrope_context = 0;     // trained context of longrope; 0: longrope is refused
  bool soft_caps = false;           // false: soft caps of scores and logits are refused
  bool unweighted_qk_norm = false;  // false: use_qk_norm is refused
  int64_t sliding_window = 0;       // 0: none
  SlidingLayers sliding_layers = SlidingLayers::kNone;
};

// Returns an error if config.json turns on a feature that is not supported. Keys of such features
// may be present, but only with the value that turns the feature off (false, 1 or null; for
// experts, 0).
absl::Status CheckLlamaFeatures(const HfFields& fields, const LlamaDefaults& defaults);
absl::Status ReadLlamaSizes(const HfFields& fields, const LlamaDefaults& defaults,
                            ModelDraft& draft);

// Reads ropes[0], in the spelling of transformers 4 or 5.
absl::Status ReadLlamaRope(const HfFields& fields, const LlamaDefaults& defaults,
                           ModelDraft& draft);

// Reads everything: sizes, norms, rotary positions, the activation, the window. Refuses features
// that Llama does not have.
absl::Status ReadLlamaLike(const HfFields& fields, const LlamaDefaults& defaults,
                           ModelDraft& draft);

inline constexpr TensorNames kLlamaHfNames = {.prefix = "model.",
                                              .embedding = "embed_tokens",
                                              .final_norm = "norm",
                                              .head = "lm_head",
                                              .layer_prefix = "layers.",
                                              .attention_norm = "input_layernorm",
                                              .q = "self_attn.q_proj",
                                              .k = "self_attn.k_proj",
                                              .v = "self_attn.v_proj",
                                              .o = "self_attn.o_proj",
                                              .mlp_norm = "post_attention_layernorm",
                                              .gate = "mlp.gate_proj",
                                              .up = "mlp.up_proj",
                                              .down = "mlp.down_proj"};

// Adds the names of the norms of queries and keys.
constexpr TensorNames WithHfQkNorms(TensorNames names) {
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  return names;
}

// The names of experts in transformers 5, which are the same for every class.
inline constexpr MixtureNames kFusedExperts = {
    .router = "mlp.gate.weight", .up = "mlp.experts.gate_up_proj", .down = "mlp.experts.down_proj"};

}  // namespace quire::engine
