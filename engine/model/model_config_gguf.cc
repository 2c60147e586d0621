// Reads a ModelConfig from GGUF metadata (the keys of ggml/docs/gguf.md).

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/gguf_fields.h"
#include "engine/model/gguf_keys.h"
#include "engine/model/gguf_rope.h"
#include "engine/model/model_config_reader.h"
#include "files/ggml_types.h"
#include "files/printable.h"

namespace quire::engine {
namespace {

// Returns `name` with "blk.0." in front. The caller adds a suffix such as ".weight".
std::string OfLayer(const TensorNames& names, const char* name) {
  return absl::StrCat(names.layer_prefix, "0.", name);
}

absl::StatusOr<const Architecture*> FindGgufArchitecture(const files::GgufMetadata& metadata) {
  constexpr std::string_view kKey = "general.architecture";
  const absl::StatusOr<std::string_view> name = metadata.String(kKey);
  if (!name.ok()) return absl::InvalidArgumentError(name.status().message());
  std::string supported;
  for (const Architecture* architecture : Architectures()) {
    if (architecture->read_gguf == nullptr) continue;
    if (architecture->gguf_name == *name) return architecture;
    absl::StrAppend(&supported, supported.empty() ? "" : ", ",
                    base::ToAbsl(architecture->gguf_name));
  }
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s: want one of: %s; got \"%s\"",
                                                    metadata.file(), kKey, supported,
                                                    files::Printable(*name)));
}

// Reads the sizes that may differ between layers.
absl::Status ReadSizesOfLayers(GgufFields& fields, ModelDraft& draft) {
  const int64_t num_layers = draft.num_hidden_layers;
  std::vector<int64_t> inner_sizes, heads, kv_heads;
  RETURN_IF_ERROR(
      fields.IntsOfLayers("feed_forward_length", std::nullopt, num_layers, inner_sizes));
  RETURN_IF_ERROR(fields.IntsOfLayers("attention.head_count", std::nullopt, num_layers, heads));
  RETURN_IF_ERROR(
      fields.IntsOfLayers("attention.head_count_kv", heads.front(), num_layers, kv_heads));
  if (!fields.Has("attention.head_count_kv")) kv_heads = heads;
  draft.every.feed_forward.inner_size = inner_sizes.front();
  draft.every.attention.num_heads = heads.front();
  draft.every.attention.num_kv_heads = kv_heads.front();
  draft.Vary([=](int64_t i, LayerSpec& layer) {
    const auto set = [&](int64_t& size, const std::vector<int64_t>& sizes) {
      if (sizes.size() > 1) size = sizes[static_cast<size_t>(i)];
    };
    set(layer.feed_forward.inner_size, inner_sizes);
    set(layer.attention.num_heads, heads);
    set(layer.attention.num_kv_heads, kv_heads);
  });
  return absl::OkStatus();
}

// Reads the scales that quire-convert writes, one of K and one of V for each layer.
absl::Status ReadCacheScales(GgufFields& fields, ModelDraft& draft) {
  std::vector<double> k, v;
  RETURN_IF_ERROR(fields.FloatsOfLayers(kGgufKCacheScales, draft.num_hidden_layers, k));
  RETURN_IF_ERROR(fields.FloatsOfLayers(kGgufVCacheScales, draft.num_hidden_layers, v));
  draft.Vary([=](int64_t i, LayerSpec& layer) {
    kernels::CacheScales& scales = layer.attention.cache_scales;
    if (!k.empty()) scales.k = static_cast<float>(k[static_cast<size_t>(i)]);
    if (!v.empty()) scales.v = static_cast<float>(v[static_cast<size_t>(i)]);
  });
  return absl::OkStatus();
}

absl::Status ReadGgufSizes(GgufFields& fields, ModelDraft& draft) {
  RETURN_IF_ERROR(fields.Int("block_count", std::nullopt, draft.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("embedding_length", std::nullopt, draft.hidden_size));
  RETURN_IF_ERROR(fields.Int("context_length", std::nullopt, draft.max_position_embeddings));
  RETURN_IF_ERROR(ReadSizesOfLayers(fields, draft));
  const int64_t heads = draft.every.attention.num_heads;
  if (!fields.Has("attention.key_length") && (heads <= 0 || draft.hidden_size % heads != 0)) {
    return fields.Error(
        "attention.head_count",
        absl::StrFormat("want a divisor of embedding_length %d, got %d", draft.hidden_size, heads));
  }
  RETURN_IF_ERROR(fields.Int("attention.key_length", heads > 0 ? draft.hidden_size / heads : 0,
                             draft.every.attention.key_dim));
  return fields.Int("attention.value_length", draft.every.attention.key_dim,
                    draft.every.attention.value_dim);
}

// Sets vocab_size to the number of tokens in the file, or to the key vocab_size if the file has no
// tokens. Returns InvalidArgument if the embedding has another number of rows.
absl::Status ReadVocabSize(GgufFields& fields, const TensorNames& names, ModelDraft& draft) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const files::GgufValue* tokens = fields.metadata().Find(kTokens);
  if (tokens != nullptr) {
    draft.vocab_size = tokens->count;
  } else {
    RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, draft.vocab_size));
  }
  const std::string name = absl::StrCat(names.embedding, ".weight");
  const files::TensorInfo* embedding = fields.weights().Find(name);
  if (embedding == nullptr || embedding->shape.size() != 2 ||
      embedding->shape[0] == draft.vocab_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s: want the %d tokens of %s, got %d", fields.metadata().file(),
                      tokens != nullptr ? std::string(kTokens) : "vocab_size", embedding->shape[0],
                      name, draft.vocab_size));
}

// Fills in the members that no key gives, from the tensors of the file.
void ReadTensors(const GgufFields& fields, const TensorNames& names, ModelDraft& draft) {
  const auto has = [&](const char* name, const char* suffix) {
    return name != nullptr && fields.HasTensor(OfLayer(names, name) + suffix);
  };
  draft.tie_word_embeddings = !fields.HasTensor(absl::StrCat(names.head, ".weight"));
  draft.norm_bias = fields.HasTensor(absl::StrCat(names.final_norm, ".bias"));
  draft.every.attention.bias = has(names.q, ".bias") || has(names.qkv, ".bias");
  draft.every.feed_forward.bias = has(names.gate, ".bias") || has(names.up, ".bias");
  if (has(names.q_norm, ".weight")) {
    const files::TensorInfo* norm = fields.weights().Find(OfLayer(names, names.q_norm) + ".weight");
    const bool of_a_head = norm->shape == std::vector<int64_t>{draft.every.attention.key_dim};
    draft.every.attention.qk_norm = of_a_head ? QkNormScope::kHead : QkNormScope::kToken;
  }
}

// Returns true if the whole of `name` matches `pattern`, in which '#' stands for a number.
bool Matches(std::string_view name, std::string_view pattern) {
  const size_t number = pattern.find('#');
  if (number == std::string_view::npos) return name == pattern;
  const std::string_view end = pattern.substr(number + 1);
  if (!name.starts_with(pattern.substr(0, number)) || !name.ends_with(end) ||
      name.size() <= number + end.size()) {
    return false;
  }
  name = name.substr(number, name.size() - number - end.size());
  return name.find_first_not_of("0123456789") == std::string_view::npos;
}

// Refuses a tensor that the architecture does not have, since such a tensor may belong to an
// unsupported feature. Also refuses a tensor of a type that no kernel reads.
absl::Status CheckTensors(const GgufFields& fields, const TensorNames& names,
                          std::string_view architecture) {
  const char* const top[] = {names.embedding,  names.embedding_norm, names.position_embedding,
                             names.final_norm, names.head,           "rope_freqs"};
  const char* const of_layer[] = {names.attention_norm,
                                  names.attention_post_norm,
                                  names.q,
                                  names.k,
                                  names.v,
                                  names.qkv,
                                  names.q_norm,
                                  names.o,
                                  names.up,
                                  names.mlp_norm,
                                  names.mlp_post_norm,
                                  names.k_norm,
                                  names.gate,
                                  names.down,
                                  names.shared_gate,
                                  names.shared_up,
                                  names.shared_down};
  const auto is_one_of = [](std::string_view name, const auto& known) {
    return std::ranges::any_of(known, [&](const char* part) {
      return part != nullptr &&
             (name == absl::StrCat(part, ".weight") || name == absl::StrCat(part, ".bias"));
    });
  };
  const auto is_known = [&](std::string_view name) {
    if (!name.starts_with(names.layer_prefix)) return is_one_of(name, top);
    name.remove_prefix(std::string_view(names.layer_prefix).size());
    name.remove_prefix(std::min(name.find_first_not_of("0123456789"), name.size()));
    if (!name.starts_with('.')) return false;
    name.remove_prefix(1);
    const auto is_of_mixture = [&](const MixtureNames& mixture) {
      return std::ranges::any_of(
          std::array{mixture.router, mixture.gate, mixture.up, mixture.down},
          [&](const char* pattern) { return pattern != nullptr && Matches(name, pattern); });
    };
    return name == "attn_rot_embd" || is_one_of(name, of_layer) ||
           std::ranges::any_of(names.mixtures, is_of_mixture);
  };
  const auto error = [&](const std::string& name, const std::string& wanted_and_got) {
    return absl::InvalidArgumentError(absl::StrCat(fields.metadata().file(), ": tensor ",
                                                   files::Printable(name), ": ", wanted_and_got));
  };
  for (const files::TensorInfo& tensor : fields.weights().tensors()) {
    if (is_known(tensor.name)) continue;
    return error(tensor.name,
                 absl::StrCat("want a tensor of the ", base::ToAbsl(architecture),
                              " architecture, got one that it does not have: the model may need a "
                              "feature that is not supported"));
  }
  for (const files::UnusableTensor& tensor : fields.weights().unusable_tensors()) {
    return error(tensor.name, absl::StrFormat("want one of the types %s, got %s",
                                              files::SupportedGgmlTypes(), tensor.type_name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufModelConfig(const files::GgufMetadata& metadata,
                                                const files::WeightMap& weights) {
  ASSIGN_OR_RETURN(const Architecture* architecture, FindGgufArchitecture(metadata));
  ModelDraft draft;
  draft.architecture = std::string(architecture->name);
  ASSIGN_OR_RETURN(const std::string_view name, metadata.StringOr("general.name", ""));
  draft.name = std::string(name);
  GgufFields fields(metadata, weights, architecture->gguf_name);
  RETURN_IF_ERROR(ReadGgufSizes(fields, draft));
  RETURN_IF_ERROR(ReadCacheScales(fields, draft));
  draft.ropes[0].layout = architecture->gguf_rope_layout;
  RETURN_IF_ERROR(ReadGgufRope(fields, draft));
  RETURN_IF_ERROR(architecture->read_gguf(fields, draft));
  const bool rms = draft.norm == kernels::NormKind::kRmsNorm;
  RETURN_IF_ERROR(
      fields.Float(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
                   std::nullopt, draft.norm_eps));
  const TensorNames names = architecture->gguf_names(draft.every);
  RETURN_IF_ERROR(ReadVocabSize(fields, names, draft));
  ReadTensors(fields, names, draft);
  RETURN_IF_ERROR(fields.CheckTheRest());
  RETURN_IF_ERROR(CheckTensors(fields, names, architecture->gguf_name));
  draft.weight_type = DominantWeightType(weights);
  return std::move(draft).Complete(metadata.file());
}

}  // namespace quire::engine
