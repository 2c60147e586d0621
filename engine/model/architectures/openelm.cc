// OpenELM (arXiv:2404.14619). The numbers of heads and the size of the feed-forward network grow
// from layer to layer. Queries and keys are normalised by head. The class is not in transformers:
// it comes with the model (modeling_openelm.py), and this file follows its code.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/architectures/gguf_names.h"
#include "engine/model/model_config_reader.h"

namespace quire::engine {
namespace {

constexpr std::array<std::string_view, 1> kOpenElmClasses = {"OpenELMForCausalLM"};
// Far beyond any model. Products of widths and multipliers stay within 64 bits.
constexpr int64_t kMostWidth = int64_t{1} << 30;

// Reads a list with a number for each layer.
absl::Status ReadOfLayers(const HfFields& fields, const char* key, int64_t num_layers,
                          std::vector<int64_t>& out) {
  const nlohmann::json* list = fields.Find(key);
  const auto is_size = [](const nlohmann::json& value) {
    return value.is_number_unsigned() && value <= INT32_MAX;
  };
  if (list == nullptr || !list->is_array() || std::ssize(*list) != num_layers ||
      !std::ranges::all_of(*list, is_size)) {
    return fields.Wrong(key, "a number for each of num_transformer_layers");
  }
  out = list->get<std::vector<int64_t>>();
  return absl::OkStatus();
}

// Rounds to a multiple of `divisor`, as make_divisible of the model's code does.
int64_t Divisible(double value, int64_t divisor) {
  const double half = static_cast<double>(divisor) / 2;
  const int64_t rounded = std::max(divisor, static_cast<int64_t>(value + half) / divisor * divisor);
  return static_cast<double>(rounded) < 0.9 * value ? rounded + divisor : rounded;
}

// Reads ffn_multipliers: the inner sizes of the feed-forward networks as multiples of model_dim,
// one for all layers or one for each.
absl::Status ReadInnerSizes(const HfFields& fields, const ModelDraft& draft,
                            std::vector<int64_t>& out) {
  int64_t divisor = 0;
  RETURN_IF_ERROR(fields.Int("ffn_dim_divisor", 256, divisor));
  if (divisor < 1 || divisor > kMostWidth) return fields.Wrong("ffn_dim_divisor", "at least 1");
  const nlohmann::json* found = fields.Find("ffn_multipliers");
  const nlohmann::json one = found == nullptr ? nlohmann::json(4.0) : *found;
  const nlohmann::json list = one.is_array() ? one : nlohmann::json::array({one});
  const auto is_multiplier = [](const nlohmann::json& value) {
    return value.is_number() && value > 0.0 && value < 1024.0;
  };
  if ((one.is_array() && std::ssize(list) != draft.num_hidden_layers) ||
      !std::ranges::all_of(list, is_multiplier)) {
    return fields.Wrong("ffn_multipliers", "a number for each of num_transformer_layers");
  }
  for (const nlohmann::json& multiplier : list) {
    out.push_back(
        Divisible(multiplier.get<double>() * static_cast<double>(draft.hidden_size), divisor));
  }
  return absl::OkStatus();
}

absl::Status CheckFeatures(const HfFields& fields) {
  const auto want = [&](const char* key, bool usual) -> absl::Status {
    bool is = usual;
    RETURN_IF_ERROR(fields.Bool(key, usual, is));
    return is ? absl::OkStatus() : fields.Wrong(key, "true");
  };
  RETURN_IF_ERROR(want("ffn_with_glu", true));
  RETURN_IF_ERROR(want("share_input_output_layers", true));
  std::string name;
  RETURN_IF_ERROR(fields.String("activation_fn_name", "swish", name));
  if (name != "swish" && name != "silu") return fields.Wrong("activation_fn_name", "swish");
  RETURN_IF_ERROR(fields.String("normalization_layer_name", "rms_norm", name));
  return name == "rms_norm" ? absl::OkStatus()
                            : fields.Wrong("normalization_layer_name", "rms_norm");
}

absl::Status ReadOpenElm(const HfFields& fields, std::string_view, ModelDraft& draft) {
  RETURN_IF_ERROR(CheckFeatures(fields));
  RETURN_IF_ERROR(fields.Int("vocab_size", 32000, draft.vocab_size));
  RETURN_IF_ERROR(fields.Int("model_dim", 2048, draft.hidden_size));
  RETURN_IF_ERROR(fields.Int("num_transformer_layers", 12, draft.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("max_context_length", 2048, draft.max_position_embeddings));
  int64_t head_dim = 0;
  RETURN_IF_ERROR(fields.Int("head_dim", 128, head_dim));
  draft.every.attention.set_head_dim(head_dim);
  draft.ropes[0].rope_dim = head_dim;
  RETURN_IF_ERROR(fields.Float("rope_freq_constant", 10000.0, draft.ropes[0].theta));
  draft.norm_eps = 1e-6;  // the class has no setting for it
  draft.tie_word_embeddings = true;
  bool norms = true;
  RETURN_IF_ERROR(fields.Bool("normalize_qk_projections", true, norms));
  draft.every.attention.qk_norm = norms ? QkNormScope::kHead : QkNormScope::kNone;
  // Complete() reports a number of layers that is out of range.
  if (draft.num_hidden_layers < 1 || draft.num_hidden_layers > kMaxLayers) return absl::OkStatus();
  if (draft.hidden_size < 1 || draft.hidden_size > kMostWidth) {
    return fields.Wrong("model_dim", "at least 1");
  }
  std::vector<int64_t> heads, kv_heads, inner_sizes;
  RETURN_IF_ERROR(ReadOfLayers(fields, "num_query_heads", draft.num_hidden_layers, heads));
  RETURN_IF_ERROR(ReadOfLayers(fields, "num_kv_heads", draft.num_hidden_layers, kv_heads));
  RETURN_IF_ERROR(ReadInnerSizes(fields, draft, inner_sizes));
  draft.Vary([=](int64_t index, LayerSpec& layer) {
    const auto i = static_cast<size_t>(index);
    layer.attention.num_heads = heads[i];
    layer.attention.num_kv_heads = kv_heads[i];
    layer.feed_forward.inner_size = inner_sizes.size() == 1 ? inner_sizes[0] : inner_sizes[i];
  });
  return absl::OkStatus();
}

TensorNames OpenElmNames(const LayerSpec&) {
  return {.prefix = "transformer.",
          .embedding = "token_embeddings",
          .final_norm = "norm",
          .head = "lm_head",
          .layer_prefix = "layers.",
          .attention_norm = "attn_norm",
          .qkv = "attn.qkv_proj",
          .q_norm = "attn.q_norm",
          .k_norm = "attn.k_norm",
          .o = "attn.out_proj",
          .mlp_norm = "ffn_norm",
          .up = "ffn.proj_1",
          .down = "ffn.proj_2"};
}

// llama.cpp stores the gate and the rest of proj_1 apart.
TensorNames OpenElmGgufNames(const LayerSpec&) {
  TensorNames names = WithGgufQkNorms(kGgufNames);
  names.qkv = "attn_qkv";
  return names;
}

}  // namespace

const Architecture kOpenElm = {
    .name = "openelm",
    .hf_classes = kOpenElmClasses,
    .read_hf = ReadOpenElm,
    .hf_names = OpenElmNames,
    .read_gguf = [](GgufFields&, ModelDraft&) { return absl::OkStatus(); },
    .gguf_names = OpenElmGgufNames,
    .write_gguf = [](const ModelConfig&, GgufKeys&) {}};

}  // namespace quire::engine
