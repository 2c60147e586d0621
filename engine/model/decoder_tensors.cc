#include "engine/model/decoder_tensors.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/scaled_matrix.h"
#include "files/printable.h"

namespace quire::engine {
namespace {

// Tensors whose names end in these strings are no parameters of the decoder. They can be computed,
// are copies, or the config has them. The last ones are scales of quantised activations, which are
// not rounded here.
constexpr std::string_view kNotParameters[] = {
    ".rotary_emb.inv_freq", "rope_freqs.weight", ".attn_rot_embd", ".attention.masked_bias",
    ".attention.bias",      ".attn.masked_bias", ".attn.bias",     ".input_scale",
    ".output_scale"};
constexpr std::string_view kCacheScales[] = {".k_scale", ".v_scale", ".kv_scale"};

bool EndsWithOne(std::string_view name, std::span<const std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return name.ends_with(end); });
}

// Checks a tensor of e4m3, and adds the name of its scales to `known`.
absl::Status CheckE4M3(const NamedRows& part, int64_t cols, const files::WeightMap& weights,
                       std::set<std::string>& known) {
  if (cols == 0 || part.num_matrices != 0 || part.form != NamedRows::Form::kAsIs) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", part.name,
                     ": want F8_E4M3 only in a matrix of its own, stored as it multiplies"));
  }
  ASSIGN_OR_RETURN(std::string scales, CheckScales(part.name, part.rows, cols, weights));
  known.insert(std::move(scales));
  return absl::OkStatus();
}

// Returns the place of the `rows` rows of one expert. A '#' in `name` stands for the number of the
// expert. Without '#', one tensor holds the matrices of all `num_experts` experts.
NamedRows OfExpert(const std::string& prefix, const char* name, int64_t num_experts, int64_t expert,
                   int64_t rows) {
  const std::string_view pattern = name;
  const size_t mark = pattern.find('#');
  if (mark != std::string_view::npos) {
    return {.name = absl::StrCat(prefix, base::ToAbsl(pattern.substr(0, mark)), expert,
                                 base::ToAbsl(pattern.substr(mark + 1))),
            .rows = rows};
  }
  return {.name = prefix + name,
          .rows = rows,
          .ranges = {{expert * rows, (expert + 1) * rows}},
          .num_matrices = num_experts};
}

class Finder {
 public:
  Finder(const ModelConfig& config, const TensorNames& names, const HasTensor& has)
      : config_(config), names_(names), has_(has) {}

  DecoderTensors Find() const;

 private:
  LayerTensors Layer(const std::string& prefix, const LayerSpec& spec) const;
  // The names of the three projections of a network; see TensorNames.
  struct NetworkNames {
    const char *gate, *up, *down;
  };
  void FeedForward(const std::string& prefix, const FeedForwardSpec& spec,
                   const NetworkNames& names, LayerTensors& layer) const;
  void Mixture(const std::string& prefix, const FeedForwardSpec& spec, LayerTensors& layer) const;
  // Returns the naming that the file uses for the mixture's tensors. If the file fits none of the
  // namings, returns the first one, so that the tensors of these names are reported as missing.
  const MixtureNames& WayOfMixture(const std::string& prefix) const;
  // Returns the rows of the queries, keys and values of a layer, in this order.
  std::vector<NamedRows> QkvRows(const std::string& prefix, const char* suffix,
                                 const AttentionSpec& spec) const;
  StoredNorm Norm(const std::string& name) const;
  StoredParameter NormWeight(const std::string& name, int64_t size) const;
  // Returns a matrix of a layer, marked as transposed if the file stores it so.
  StoredParameter Matrix(std::vector<NamedRows> parts, int64_t cols) const;

  const ModelConfig& config_;
  const TensorNames names_;
  const HasTensor& has_;
};

StoredParameter Finder::NormWeight(const std::string& name, int64_t size) const {
  return {.parts = {{name + ".weight", size}},
          .offset = static_cast<float>(config_.norm_weight_offset)};
}

StoredNorm Finder::Norm(const std::string& name) const {
  StoredNorm norm = {.weight = NormWeight(name, config_.hidden_size)};
  if (config_.norm_bias) norm.bias.parts = {{name + ".bias", config_.hidden_size}};
  return norm;
}

StoredParameter Finder::Matrix(std::vector<NamedRows> parts, int64_t cols) const {
  for (NamedRows& part : parts) {
    if (names_.layers_are_transposed) part.form = NamedRows::Form::kTransposed;
  }
  return {.parts = std::move(parts), .cols = cols};
}

std::vector<NamedRows> Finder::QkvRows(const std::string& prefix, const char* suffix,
                                       const AttentionSpec& spec) const {
  const int64_t q_size = spec.q_size(), k_size = spec.k_size(), v_size = spec.v_size();
  if (names_.kv != nullptr) {
    return {{absl::StrCat(prefix, names_.q, suffix), q_size},
            {absl::StrCat(prefix, names_.kv, suffix), k_size + v_size}};
  }
  if (names_.qkv == nullptr) {
    return {{absl::StrCat(prefix, names_.q, suffix), q_size},
            {absl::StrCat(prefix, names_.k, suffix), k_size},
            {absl::StrCat(prefix, names_.v, suffix), v_size}};
  }
  NamedRows fused = {absl::StrCat(prefix, names_.qkv, suffix), spec.qkv_size()};
  if (names_.qkv_layout == QkvLayout::kGrouped) {
    const int64_t queries = q_size / spec.num_kv_heads;
    const auto take = [&](int64_t from, int64_t size) {
      for (int64_t group = 0; group < spec.num_kv_heads; ++group) {
        const int64_t begin = group * (queries + spec.key_dim + spec.value_dim) + from;
        fused.ranges.push_back({begin, begin + size});
      }
    };
    take(0, queries);
    take(queries, spec.key_dim);
    take(queries + spec.key_dim, spec.value_dim);
  }
  return {fused};
}

const MixtureNames& Finder::WayOfMixture(const std::string& prefix) const {
  for (const MixtureNames& way : names_.mixtures) {
    if (way.down != nullptr && has_(OfExpert(prefix, way.down, 1, 0, 1).name)) return way;
  }
  return names_.mixtures.front();
}

void Finder::Mixture(const std::string& prefix, const FeedForwardSpec& spec,
                     LayerTensors& layer) const {
  const MixtureNames& way = WayOfMixture(prefix);
  const int64_t hidden = config_.hidden_size, inner = spec.inner_size, num = spec.experts.count;
  const auto all = [&](const char* name, int64_t rows, NamedRows::Form form) {
    return std::vector<NamedRows>{
        {.name = prefix + name, .rows = rows, .num_matrices = num, .form = form}};
  };
  const auto up_form = way.in_turns     ? NamedRows::Form::kTransposedInTurns
                       : way.transposed ? NamedRows::Form::kTransposed
                                        : NamedRows::Form::kAsIs;
  if (spec.experts.router_bias) layer.router_bias.parts = {{prefix + way.router_bias, num}};
  if (spec.experts.choice_bias) layer.choice_bias.parts = {{prefix + way.choice_bias, num}};
  if (spec.bias) {
    layer.experts_up_bias.parts = all(way.up_bias, 2 * inner, up_form);
    layer.experts_down_bias.parts = all(way.down_bias, hidden, NamedRows::Form::kAsIs);
  }
  layer.router = {
      .parts = {{prefix + way.router, num}}, .cols = hidden, .role = ParameterRole::kRouter};
  layer.experts_up.cols = hidden;
  layer.experts_down.cols = inner;
  if (way.transposed) {
    layer.experts_up.parts = all(way.up, 2 * inner, up_form);
    layer.experts_down.parts = all(way.down, hidden, NamedRows::Form::kTransposed);
    return;
  }
  const bool fused = way.gate == nullptr;
  for (int64_t expert = 0; expert < num; ++expert) {
    std::vector<NamedRows>& up = layer.experts_up.parts;
    if (!fused) up.push_back(OfExpert(prefix, way.gate, num, expert, inner));
    up.push_back(OfExpert(prefix, way.up, num, expert, fused ? 2 * inner : inner));
    layer.experts_down.parts.push_back(OfExpert(prefix, way.down, num, expert, hidden));
  }
}

void Finder::FeedForward(const std::string& prefix, const FeedForwardSpec& spec,
                         const NetworkNames& names, LayerTensors& layer) const {
  const int64_t hidden = config_.hidden_size, inner = spec.dense_inner_size();
  const bool gated = IsGated(spec.activation), fused = gated && names.gate == nullptr;
  std::vector<NamedRows> weights, biases;
  for (const char* part : {gated ? names.gate : nullptr, names.up}) {
    if (part == nullptr) continue;
    weights.push_back({absl::StrCat(prefix, part, ".weight"), fused ? 2 * inner : inner});
    biases.push_back({absl::StrCat(prefix, part, ".bias"), fused ? 2 * inner : inner});
  }
  layer.up = Matrix(std::move(weights), hidden);
  if (names_.up_in_turns) layer.up.parts[0].form = biases[0].form = NamedRows::Form::kInTurns;
  layer.down = Matrix({{absl::StrCat(prefix, names.down, ".weight"), hidden}}, inner);
  if (!spec.bias) return;
  layer.up_bias.parts = std::move(biases);
  layer.down_bias.parts = {{absl::StrCat(prefix, names.down, ".bias"), hidden}};
}

LayerTensors Finder::Layer(const std::string& prefix, const LayerSpec& spec) const {
  const AttentionSpec& attention = spec.attention;
  const int64_t hidden = config_.hidden_size;
  LayerTensors layer;
  layer.attention_norm = Norm(prefix + names_.attention_norm);
  if (spec.residual != Residual::kParallelOneNorm) layer.mlp_norm = Norm(prefix + names_.mlp_norm);
  if (spec.residual == Residual::kPostNorms) {
    layer.attention_post_norm = Norm(prefix + names_.attention_post_norm);
    layer.mlp_post_norm = Norm(prefix + names_.mlp_post_norm);
  }
  layer.qkv = Matrix(QkvRows(prefix, ".weight", attention), hidden);
  layer.qkv.role = layer.qkv_bias.role = ParameterRole::kQkv;
  layer.o = Matrix({{absl::StrCat(prefix, names_.o, ".weight"), hidden}}, attention.o_size());
  if (attention.bias) {
    layer.qkv_bias.parts = QkvRows(prefix, ".bias", attention);
    const std::string o_bias = absl::StrCat(prefix, names_.o, ".bias");
    if (has_(o_bias)) layer.o_bias.parts = {{o_bias, hidden}};
  }
  if (attention.sinks) layer.sinks.parts = {{prefix + names_.sinks, attention.num_heads}};
  const bool of_head = attention.qk_norm == QkNormScope::kHead;
  if (of_head || attention.qk_norm == QkNormScope::kToken) {
    const int64_t dim = attention.key_dim;
    layer.q_norm = NormWeight(prefix + names_.q_norm, of_head ? dim : attention.q_size());
    layer.k_norm = NormWeight(prefix + names_.k_norm, of_head ? dim : attention.k_size());
  }
  if (spec.has_experts()) {
    Mixture(prefix, spec.feed_forward, layer);
    if (spec.feed_forward.experts.shared_inner_size == 0) return layer;
    const NetworkNames shared = {names_.shared_gate, names_.shared_up, names_.shared_down};
    FeedForward(prefix, spec.feed_forward, shared, layer);
  } else {
    FeedForward(prefix, spec.feed_forward, {names_.gate, names_.up, names_.down}, layer);
  }
  return layer;
}

DecoderTensors Finder::Find() const {
  const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
  const std::string prefix = names_.prefix;
  DecoderTensors found;
  found.embedding = {.parts = {{absl::StrCat(prefix, names_.embedding, ".weight"), vocab}},
                     .cols = hidden,
                     .role = ParameterRole::kEmbedding};
  if (config_.learned_positions) {
    found.position_embedding = {
        .parts = {{absl::StrCat(prefix, names_.position_embedding, ".weight"),
                   config_.max_position_embeddings}},
        .cols = hidden,
        .role = ParameterRole::kPositions};
  }
  if (names_.embedding_norm != nullptr) found.embedding_norm = Norm(prefix + names_.embedding_norm);
  if (!config_.tie_word_embeddings) {
    found.head = {.parts = {{absl::StrCat(names_.head, ".weight"), vocab}},
                  .cols = hidden,
                  .role = ParameterRole::kHead};
    if (config_.unit_head_rows) found.head.parts[0].form = NamedRows::Form::kUnitRows;
  }
  found.final_norm = Norm(prefix + names_.final_norm);
  found.final_norm.weight.factor = found.final_norm.bias.factor =
      static_cast<float>(config_.logit_scale);
  for (int64_t i = 0; i < config_.num_layers(); ++i) {
    found.layers.push_back(
        Layer(absl::StrCat(prefix, names_.layer_prefix, i, "."), config_.layers[i]));
  }
  return found;
}

}  // namespace

std::vector<int64_t> ShapeOf(const NamedRows& part, int64_t cols) {
  std::vector<int64_t> shape;
  if (part.num_matrices != 0) shape.push_back(part.num_matrices);
  shape.push_back(part.rows);
  if (cols == 0) return shape;
  const bool transposed =
      part.form == NamedRows::Form::kTransposed || part.form == NamedRows::Form::kTransposedInTurns;
  shape.insert(transposed ? shape.end() - 1 : shape.end(), cols);
  return shape;
}

std::vector<RowRange> RangesOf(const NamedRows& part) {
  const int64_t rows = part.rows * std::max<int64_t>(1, part.num_matrices);
  return part.ranges.empty() ? std::vector<RowRange>{{0, rows}} : part.ranges;
}

HasTensor HasTensorIn(const files::WeightMap& weights) {
  return [&weights](std::string_view name) { return weights.Find(name) != nullptr; };
}

TensorNames InSpellingOfFile(const TensorNames& names, const HasTensor& has) {
  const std::string embedding = absl::StrCat(names.embedding, ".weight");
  TensorNames spelled = names;
  if (has(embedding)) {
    spelled.prefix = "";
  } else if (names.other_prefix != nullptr && has(names.other_prefix + embedding)) {
    spelled.prefix = names.other_prefix;
    spelled.head = names.other_head;
  }
  return spelled;
}

DecoderTensors FindTensors(const ModelConfig& config, const TensorNames& names,
                           const HasTensor& has) {
  return Finder(config, InSpellingOfFile(names, has), has).Find();
}

std::vector<const StoredParameter*> AllParameters(const DecoderTensors& tensors) {
  std::vector<const StoredParameter*> all = {&tensors.embedding, &tensors.position_embedding};
  const auto add_norm = [&](const StoredNorm& norm) {
    all.insert(all.end(), {&norm.weight, &norm.bias});
  };
  add_norm(tensors.embedding_norm);
  for (const LayerTensors& layer : tensors.layers) {
    add_norm(layer.attention_norm);
    all.insert(all.end(), {&layer.qkv, &layer.qkv_bias, &layer.q_norm, &layer.k_norm, &layer.o,
                           &layer.o_bias, &layer.sinks});
    add_norm(layer.attention_post_norm);
    add_norm(layer.mlp_norm);
    all.insert(all.end(), {&layer.up, &layer.up_bias, &layer.down, &layer.down_bias, &layer.router,
                           &layer.experts_up, &layer.experts_down, &layer.router_bias,
                           &layer.choice_bias, &layer.experts_up_bias, &layer.experts_down_bias});
    add_norm(layer.mlp_post_norm);
  }
  add_norm(tensors.final_norm);
  all.push_back(&tensors.head);
  return all;
}

bool IsCacheScale(std::string_view name) { return EndsWithOne(name, kCacheScales); }

absl::Status CheckTensors(const DecoderTensors& tensors, const files::WeightMap& weights,
                          const TensorNames& names, std::string_view architecture) {
  const char* head = InSpellingOfFile(names, HasTensorIn(weights)).head;
  std::set<std::string> known;
  for (const StoredParameter* parameter : AllParameters(tensors)) {
    for (const NamedRows& part : parameter->parts) {
      known.insert(part.name);
      ASSIGN_OR_RETURN(const files::TensorInfo* tensor,
                       weights.Require(part.name, ShapeOf(part, parameter->cols)));
      if (tensor->type != kernels::WeightType::kF8E4M3) continue;
      RETURN_IF_ERROR(CheckE4M3(part, parameter->cols, weights, known));
    }
  }
  for (const files::TensorInfo& tensor : weights.tensors()) {
    const auto is_begin = [&](const char* begin) {
      return begin != nullptr && tensor.name.starts_with(begin);
    };
    const bool tied_head = tensor.name == absl::StrCat(head, ".weight");
    if (known.contains(tensor.name) || tied_head || EndsWithOne(tensor.name, kNotParameters) ||
        IsCacheScale(tensor.name) || std::ranges::any_of(names.left_out, is_begin)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", files::Printable(tensor.name), ": want a tensor of the ",
        base::ToAbsl(architecture),
        " architecture, got one that it does not have here: the model may need a feature that is "
        "not supported"));
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
