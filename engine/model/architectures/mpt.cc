// MPT (MosaicML, llm-foundry). It has LayerNorm, ALiBi, exact GELU, and a KV head for each query
// head, or grouped KV heads. The config is read as llm-foundry reads it. The class in transformers
// ignores alibi_bias_max and refuses grouped KV heads.

#include <array>

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/architectures/shared_fields.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 2> kMptClasses = {"MPTForCausalLM", "MptForCausalLM"};

absl::Status ReadFeedForward(const HfFields& ffn, ModelDraft& draft) {
  std::string type;
  RETURN_IF_ERROR(ffn.String("ffn_type", "mptmlp", type));
  if (type != "mptmlp") return ffn.Wrong("ffn_type", "mptmlp");
  RETURN_IF_ERROR(ffn.WantNull({"ffn_hidden_size"}));
  // ffn_act_fn is {"name": "gelu", "approximate": "none" or "tanh"}: a function of torch and its
  // arguments.
  ASSIGN_OR_RETURN(const std::optional<HfFields> function, ffn.Object("ffn_act_fn"));
  if (!function) return absl::OkStatus();
  std::string name, approximate;
  RETURN_IF_ERROR(function->String("name", "gelu", name));
  if (name != "gelu") return function->Wrong("name", "gelu");
  RETURN_IF_ERROR(function->String("approximate", "none", approximate));
  if (approximate == "tanh") {
    draft.every.feed_forward.activation = kernels::Activation::kGeluTanh;
  } else if (approximate != "none") {
    return function->Wrong("approximate", "none or tanh");
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const HfFields& attention, ModelDraft& draft) {
  const int64_t heads = draft.every.attention.num_heads;
  std::string type;
  RETURN_IF_ERROR(attention.String("attn_type", "multihead_attention", type));
  if (type == "multihead_attention") {
    draft.every.attention.num_kv_heads = heads;
  } else if (type == "multiquery_attention") {
    draft.every.attention.num_kv_heads = 1;
  } else if (type == "grouped_query_attention") {
    RETURN_IF_ERROR(attention.Int("kv_n_heads", std::nullopt, draft.every.attention.num_kv_heads));
  } else {
    return attention.Wrong("attn_type",
                           "multihead_attention, multiquery_attention or grouped_query_attention");
  }
  return absl::OkStatus();
}

absl::Status ReadAttention(const HfFields& attention, ModelDraft& draft) {
  RETURN_IF_ERROR(ReadHeads(attention, draft));
  bool alibi = false, qk_ln = false;
  RETURN_IF_ERROR(attention.Bool("alibi", false, alibi));
  if (!alibi) return attention.Wrong("alibi", "true: learned positions are not supported");
  double bias_max = 8.0;
  RETURN_IF_ERROR(attention.Float("alibi_bias_max", bias_max, bias_max));
  draft.alibi_bias_max = bias_max;
  RETURN_IF_ERROR(attention.Float("clip_qkv", 0.0, draft.every.attention.clip));
  RETURN_IF_ERROR(attention.Float("softmax_scale", 0.0, draft.every.attention.scale));
  RETURN_IF_ERROR(attention.Bool("qk_ln", false, qk_ln));
  if (qk_ln) {
    if (draft.every.attention.bias) return attention.Wrong("qk_ln", "false in a model with biases");
    draft.every.attention.qk_norm = QkNormScope::kToken;
  }
  int64_t window = -1;
  RETURN_IF_ERROR(attention.Int("sliding_window_size", -1, window));
  if (window != -1) return attention.Wrong("sliding_window_size", "-1");
  return attention.WantFalse({"prefix_lm", "qk_gn", "rope", "attn_uses_sequence_id"});
}

absl::Status ReadMpt(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, draft.vocab_size));
  RETURN_IF_ERROR(fields.Int("d_model", std::nullopt, draft.hidden_size));
  RETURN_IF_ERROR(fields.Int("n_layers", std::nullopt, draft.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("n_heads", std::nullopt, draft.every.attention.num_heads));
  RETURN_IF_ERROR(fields.Int("max_seq_len", 2048, draft.max_position_embeddings));
  RETURN_IF_ERROR(ReadEvenHeadDim(fields, "n_heads", "d_model", draft));
  int64_t ratio = 0;
  RETURN_IF_ERROR(fields.Int("expansion_ratio", 4, ratio));
  if (ratio < 1 || ratio > 1024) return fields.Wrong("expansion_ratio", "1 to 1024");
  draft.every.feed_forward.inner_size = draft.hidden_size * ratio;

  std::string norm;
  RETURN_IF_ERROR(fields.String("norm_type", "low_precision_layernorm", norm));
  if (norm != "low_precision_layernorm" && norm != "layernorm") {
    return fields.Wrong("norm_type", "layernorm or low_precision_layernorm");
  }
  draft.norm = kernels::NormKind::kLayerNorm;
  RETURN_IF_ERROR(fields.Float("layer_norm_epsilon", 1e-5, draft.norm_eps));
  bool no_bias = true;
  RETURN_IF_ERROR(fields.Bool("no_bias", true, no_bias));
  draft.norm_bias = draft.every.attention.bias = draft.every.feed_forward.bias = !no_bias;
  draft.every.feed_forward.activation = kernels::Activation::kGelu;
  RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", true, draft.tie_word_embeddings));
  RETURN_IF_ERROR(fields.WantNull({"logit_scale"}));
  ASSIGN_OR_RETURN(const std::optional<HfFields> ffn, fields.Object("ffn_config"));
  if (ffn) RETURN_IF_ERROR(ReadFeedForward(*ffn, draft));
  ASSIGN_OR_RETURN(const std::optional<HfFields> attention, fields.Object("attn_config"));
  if (!attention) return fields.Wrong("attn_config", "an object");
  return ReadAttention(*attention, draft);
}

constexpr TensorNames kMptNames = {.prefix = "transformer.",
                                   .embedding = "wte",
                                   .final_norm = "norm_f",
                                   .head = "lm_head",
                                   .layer_prefix = "blocks.",
                                   .attention_norm = "norm_1",
                                   .qkv = "attn.Wqkv",
                                   .q_norm = "attn.q_ln",
                                   .k_norm = "attn.k_ln",
                                   .o = "attn.out_proj",
                                   .mlp_norm = "norm_2",
                                   .up = "ffn.up_proj",
                                   .down = "ffn.down_proj"};

// Sets exact GELU, with which MPT was trained. llama.cpp's graph approximates GELU with tanh.
absl::Status ReadMptGguf(GgufFields& fields, ModelDraft& draft) {
  draft.norm = kernels::NormKind::kLayerNorm;
  draft.every.feed_forward.activation = kernels::Activation::kGelu;
  double bias_max = 0.0;
  RETURN_IF_ERROR(fields.Float("attention.max_alibi_bias", 0.0, bias_max));
  if (!(bias_max > 0.0)) {
    return fields.Error("attention.max_alibi_bias",
                        "want more than 0: learned positions are not supported");
  }
  draft.alibi_bias_max = bias_max;
  return fields.Float("attention.clamp_kqv", 0.0, draft.every.attention.clip);
}

void WriteMptGguf(const ModelConfig& config, GgufKeys& keys) {
  if (config.alibi_bias_max) keys.Float("attention.max_alibi_bias", *config.alibi_bias_max);
  const double clip = config.layers[0].attention.clip;
  if (clip != 0.0) keys.Float("attention.clamp_kqv", clip);
}

}  // namespace

const Architecture kMpt = {
    .name = "mpt",
    .hf_classes = kMptClasses,
    .read_hf = ReadMpt,
    .hf_names = [](const LayerSpec&) { return kMptNames; },
    .read_gguf = ReadMptGguf,
    .gguf_names = [](const LayerSpec&) { return WithGgufQkNorms(FusedGgufNames()); },
    .write_gguf = WriteMptGguf,
};

}  // namespace quire::engine
