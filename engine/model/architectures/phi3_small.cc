// Phi-3-small (arXiv:2404.14219): block-sparse attention in all layers but every second one,
// a clamped and gated feed-forward network, LayerNorm, and the scales of muP (arXiv:2203.03466).
//
// Follows the class published beside the weights (microsoft/Phi-3-small-8k-instruct,
// modeling_phi3_small.py); transformers has none. Its rules that are not read from a key:
//   layer i is dense if (i + 1) % dense_attention_every_n_layers == 0
//   head h of block q sees block k if q - k < local blocks, or if (k + h * step + 1) % stride == 0,
//     where step = max(1, stride / heads), and 0 with blocksparse_homo_head_pattern
//   scores are scaled by mup_attn_multiplier / head_dim with mup_use_scaling
//   rows 0, 2, ... of mlp.up_proj are the gate
// The class masks the logits of the ids that its tokenizer calls dummies. Here, ids without a piece
// in tokenizer.json are never drawn, and probabilities are over all ids (docs/models.md).

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/rope_fields.h"
#include "engine/model/architectures/shared_fields.h"
#include "kernels/activation.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kPhi3SmallClasses = {"Phi3SmallForCausalLM"};

absl::Status ReadSizes(const HfFields& fields, ModelDraft& draft) {
  AttentionSpec& attention = draft.every.attention;
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, draft.vocab_size));
  RETURN_IF_ERROR(fields.Int("hidden_size", std::nullopt, draft.hidden_size));
  RETURN_IF_ERROR(fields.Int("num_hidden_layers", std::nullopt, draft.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("num_attention_heads", std::nullopt, attention.num_heads));
  RETURN_IF_ERROR(fields.Int("num_key_value_heads", std::nullopt, attention.num_kv_heads));
  RETURN_IF_ERROR(
      fields.Int("max_position_embeddings", std::nullopt, draft.max_position_embeddings));
  RETURN_IF_ERROR(fields.Float("layer_norm_epsilon", std::nullopt, draft.norm_eps));
  RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", true, draft.tie_word_embeddings));
  draft.norm = kernels::NormKind::kLayerNorm;
  draft.norm_bias = attention.bias = true;
  return ReadEvenHeadDim(fields, "num_attention_heads", "hidden_size", draft);
}

absl::Status ReadFeedForward(const HfFields& fields, FeedForwardSpec& spec) {
  std::string activation;
  RETURN_IF_ERROR(fields.String("hidden_act", "gegelu", activation));
  if (activation != "gegelu") return fields.Wrong("hidden_act", "gegelu");
  // The same function as gpt-oss's: the gate is x * sigmoid(1.702 * x), and 1 is added to `up`.
  spec.activation = kernels::Activation::kClampedSiluMul;
  RETURN_IF_ERROR(fields.Float("gegelu_limit", std::nullopt, spec.activation_limit));
  spec.bias = true;
  RETURN_IF_ERROR(fields.WantNull({"ff_dim_multiplier"}));
  // gegelu_pad_to_256 rounds up a size that follows from ff_dim_multiplier alone.
  return fields.Int("ff_intermediate_size", std::nullopt, spec.inner_size);
}

// Reads the factors of muP. For the embedding and the width, null or 0 means 1, as in the published
// class. That class has other defaults for absent keys, which no published file relies on.
absl::Status ReadScales(const HfFields& fields, ModelDraft& draft) {
  for (const char* key : {"mup_embedding_multiplier", "mup_width_multiplier", "mup_use_scaling"}) {
    if (!fields.Has(key)) return fields.Wrong(key, "a value, or null");
  }
  AttentionSpec& attention = draft.every.attention;
  double embedding = 0.0, width = 0.0, attention_factor = 1.0;
  RETURN_IF_ERROR(fields.Float("mup_embedding_multiplier", 0.0, embedding));
  RETURN_IF_ERROR(fields.Float("mup_width_multiplier", 0.0, width));
  if (!(embedding >= 0.0 && embedding <= 1e6)) {
    return fields.Wrong("mup_embedding_multiplier", "a number in [0, 1e6]");
  }
  if (width != 0.0 && !(width >= 1e-6 && width <= 1e6)) {
    return fields.Wrong("mup_width_multiplier", "0, or a number in [1e-6, 1e6]");
  }
  if (embedding != 0.0) draft.embedding_scale = embedding;
  if (width != 0.0) draft.logit_scale = 1.0 / width;
  bool scaled = false;
  RETURN_IF_ERROR(fields.Bool("mup_use_scaling", false, scaled));
  RETURN_IF_ERROR(fields.Float("mup_attn_multiplier", 1.0, attention_factor));
  if (!scaled) return absl::OkStatus();
  if (!(attention_factor >= 1e-6 && attention_factor <= 1e6)) {
    return fields.Wrong("mup_attn_multiplier", "a number in [1e-6, 1e6]");
  }
  attention.scale = attention_factor / static_cast<double>(attention.key_dim);
  return absl::OkStatus();
}

// Gives the blocks to all layers but every n-th one. If n is absent or 0, all layers have them.
absl::Status ReadBlocks(const HfFields& fields, ModelDraft& draft) {
  constexpr int64_t kMost = 1 << 16;
  int64_t tokens = 0, local = 0, stride = 0, dense = 0;
  bool alike = false;
  RETURN_IF_ERROR(fields.Int("blocksparse_block_size", std::nullopt, tokens));
  RETURN_IF_ERROR(fields.Int("blocksparse_num_local_blocks", std::nullopt, local));
  RETURN_IF_ERROR(fields.Int("blocksparse_vert_stride", std::nullopt, stride));
  RETURN_IF_ERROR(fields.Bool("blocksparse_homo_head_pattern", false, alike));
  RETURN_IF_ERROR(fields.Int("dense_attention_every_n_layers", 0, dense));
  if (tokens < 1 || tokens > kMost || tokens % kernels::AttentionPattern::kTileKeys != 0) {
    return fields.Wrong(
        "blocksparse_block_size",
        absl::StrCat("a multiple of ", kernels::AttentionPattern::kTileKeys, ", at most ", kMost));
  }
  if (local < 1 || local > kMost) {
    return fields.Wrong("blocksparse_num_local_blocks", absl::StrCat("1 to ", kMost));
  }
  if (stride < 1 || stride > kMost) {
    return fields.Wrong("blocksparse_vert_stride", absl::StrCat("1 to ", kMost));
  }
  if (dense < 0) return fields.Wrong("dense_attention_every_n_layers", "at least 0");
  const int64_t step = alike ? 0 : std::max<int64_t>(1, stride / draft.every.attention.num_heads);
  const auto pattern =
      kernels::AttentionPattern::Blocks(tokens, static_cast<int32_t>(local),
                                        static_cast<int32_t>(stride), static_cast<int32_t>(step));
  draft.Vary([pattern, dense](int64_t index, LayerSpec& layer) {
    if (dense == 0 || (index + 1) % dense != 0) layer.attention.pattern = pattern;
  });
  return absl::OkStatus();
}

absl::Status ReadPositions(const HfFields& fields, ModelDraft& draft) {
  RopeConfig& rope = draft.ropes[0];
  rope.layout = kernels::RopeLayout::kHalfSplit;
  rope.rope_dim = draft.every.attention.key_dim;
  RETURN_IF_ERROR(fields.Float("rope_embedding_base", std::nullopt, rope.theta));
  RETURN_IF_ERROR(fields.WantOne({"rope_position_scale"}));
  ASSIGN_OR_RETURN(const std::optional<HfFields> scaling, fields.Object("rope_scaling"));
  if (!scaling) return absl::OkStatus();
  int64_t trained = 0;
  RETURN_IF_ERROR(scaling->Int("original_max_position_embeddings", std::nullopt, trained));
  return ReadRopeParameters(*scaling, draft, rope,
                            {.longrope_context = trained, .longrope_mscale = true});
}

absl::Status ReadPhi3Small(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(ReadSizes(fields, draft));
  RETURN_IF_ERROR(ReadFeedForward(fields, draft.every.feed_forward));
  RETURN_IF_ERROR(ReadScales(fields, draft));
  RETURN_IF_ERROR(ReadBlocks(fields, draft));
  return ReadPositions(fields, draft);
}

constexpr TensorNames kPhi3SmallNames = {.prefix = "model.",
                                         .embedding = "embed_tokens",
                                         .final_norm = "final_layernorm",
                                         .head = "lm_head",
                                         .layer_prefix = "layers.",
                                         .attention_norm = "input_layernorm",
                                         .qkv = "self_attn.query_key_value",
                                         .qkv_layout = QkvLayout::kGrouped,
                                         .o = "self_attn.dense",
                                         .mlp_norm = "post_attention_layernorm",
                                         .up = "mlp.up_proj",
                                         .down = "mlp.down_proj",
                                         .up_in_turns = true};

}  // namespace

// GGUF files of Phi-3-small are neither read nor written: llama.cpp has no such architecture.
const Architecture kPhi3Small = {.name = "phi3_small",
                                 .hf_classes = kPhi3SmallClasses,
                                 .read_hf = ReadPhi3Small,
                                 .hf_names = [](const LayerSpec&) { return kPhi3SmallNames; }};

}  // namespace quire::engine
