#include "engine/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/layers/device_input.h"
#include "engine/model/layers/mixture.h"
#include "engine/model/layers/parameter_loader.h"
#include "engine/model/rope_table.h"
#include "engine/weights/printable.h"
#include "kernels/alibi_slopes.h"

namespace quire::engine {
namespace {

using kernels::TensorView;

using Weight = std::unique_ptr<kernels::PreparedWeight>;

struct NormParameters {
  Parameter weight, bias;  // the bias an empty view without one
};

struct Layer {
  NormParameters attention_norm, mlp_norm;
  NormParameters attention_post_norm, mlp_post_norm;  // empty views without them
  Weight qkv, o, up, down;                            // a gated MLP's gate lies before `up`
  Parameter qkv_bias, o_bias, up_bias, down_bias;     // empty views without biases
  Parameter q_norm, k_norm;                           // likewise
  int64_t window = 0;                                 // tokens seen back; 0: all
  Mixture mixture;                                    // in the place of `up` and `down`
};

// Rows of activations for the largest step, one buffer each.
struct Activations {
  kernels::DeviceBuffer hidden, normed, qkv, query, attention, mlp, last, logits;
  kernels::DeviceBuffer branch, last_branch;  // what is to be added to hidden, and to last
};

// Tensors that files hold and that are computed, or are a copy.
constexpr std::string_view kNotParameters[] = {
    ".rotary_emb.inv_freq", "rope_freqs.weight", ".attn_rot_embd", ".attention.masked_bias",
    ".attention.bias",      ".attn.masked_bias", ".attn.bias"};

class Decoder final : public Model {
 public:
  Decoder(const ModelConfig& config, kernels::Backend& backend)
      : config_(config),
        attention_scale_(config.attention_scale != 0.0
                             ? config.attention_scale
                             : 1.0 / std::sqrt(static_cast<double>(config.head_dim))),
        backend_(backend) {}

  absl::Status Load(const WeightMap& weights, const TensorNames& names, const StepLimits& limits);

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  int64_t num_parameters() const override { return num_parameters_; }
  absl::StatusOr<TensorView> Forward(const ModelInput& input, KvCache& cache) override;

 private:
  absl::StatusOr<Layer> LoadLayer(ParameterLoader& loader, const TensorNames& names,
                                  int64_t index) const;
  // Where a layer's queries, keys and values are, in this order.
  std::vector<NamedRows> QkvRows(const TensorNames& names, const std::string& prefix,
                                 const char* suffix) const;
  absl::StatusOr<NormParameters> LoadNorm(ParameterLoader& loader, const std::string& name) const;
  // The weights of a norm over `size` elements.
  absl::StatusOr<Parameter> LoadNormWeight(ParameterLoader& loader, const std::string& name,
                                           int64_t size) const;
  // InvalidArgument for a tensor that nothing read: the model has a part that we would leave out.
  absl::Status CheckNothingIsLeft(const ParameterLoader& loader, const WeightMap& weights,
                                  const TensorNames& names) const;
  absl::Status LoadPositions(ParameterLoader& loader, const StepLimits& limits);
  absl::Status Reserve(const StepLimits& limits);
  // Keys that move up turn with it; those without rotary positions carry none.
  absl::Status ShiftKeys(const ModelInput& input, KvCache& cache);
  absl::Status Attention(const Layer& layer, TensorView kv_cache, size_t kv_group,
                         int64_t num_tokens);
  // The feed-forward network up to its hidden units, and from there into the residual.
  absl::Status MlpUp(const Layer& layer, int64_t num_tokens);
  absl::Status MlpDown(const Layer& layer, int64_t num_tokens);
  // A mixture's whole network.
  absl::Status Experts(const Layer& layer, int64_t num_tokens);
  // Adds the product to the residual; where a norm comes between, the next NormedHidden does.
  absl::Status AddToHidden(TensorView input, const Weight& weight, const Parameter& bias,
                           const NormParameters& post_norm);
  // The residual, with what waits to be added to it, normed.
  absl::StatusOr<TensorView> NormedHidden(int64_t num_tokens, const NormParameters& norm);
  // Of the rows of `input`, or of `residual` once they are added to it, into `out`.
  absl::Status Norm(TensorView out, TensorView input, const NormParameters& norm,
                    TensorView residual = {});

  int64_t q_size() const { return config_.num_attention_heads * config_.head_dim; }
  int64_t kv_size() const { return config_.num_key_value_heads * config_.head_dim; }
  // The first `rows` rows of an activation buffer.
  TensorView View(const kernels::DeviceBuffer& buffer, int64_t rows, int64_t cols) const {
    return TensorView(buffer.data(), backend_.activation_dtype(), {rows, cols});
  }
  TensorView Hidden(int64_t rows) const { return View(act_.hidden, rows, config_.hidden_size); }
  TensorView RopeTable(const Layer& layer) const {
    return layer.window != 0 && config_.local_rope ? local_rope_table_.view : rope_table_.view;
  }
  TensorView Branch(int64_t rows) const { return View(act_.branch, rows, config_.hidden_size); }

  // Constant after Load.
  const ModelConfig config_;
  const double attention_scale_;
  kernels::Backend& backend_;                          // not owned
  std::string prefix_;                                 // of this file's names
  Weight embedding_, head_;                            // head_ is null when tied
  Weight position_embedding_;                          // null without learned positions
  std::vector<std::vector<std::byte>> weight_memory_;  // that weights point into
  NormParameters embedding_norm_, final_norm_;
  Parameter rope_table_, alibi_slopes_;  // one of them; the other's view is empty
  Parameter local_rope_table_;           // of layers with a window; empty: rope_table_
  std::vector<Layer> layers_;
  int64_t num_parameters_ = 0;
  int64_t weight_bytes_ = 0;

  // Step thread only.
  Activations act_;
  bool branch_waits_ = false;       // act_.branch is to be added to act_.hidden
  std::vector<float> host_logits_;  // where the backend's memory is not the host's
  DeviceInput device_;
};

absl::Status Decoder::Load(const WeightMap& weights, const TensorNames& names,
                           const StepLimits& limits) {
  ParameterLoader loader(weights, backend_);
  const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
  const auto weight = [](std::string_view prefix, const char* name) {
    return absl::StrCat(base::ToAbsl(prefix), name, ".weight");
  };
  prefix_ = loader.Has(weight("", names.embedding)) ? "" : names.prefix;

  ASSIGN_OR_RETURN(embedding_, loader.Matrix({{weight(prefix_, names.embedding), vocab}}, hidden));
  if (names.embedding_norm != nullptr) {
    ASSIGN_OR_RETURN(embedding_norm_, LoadNorm(loader, prefix_ + names.embedding_norm));
  }
  if (config_.learned_positions) {
    ASSIGN_OR_RETURN(position_embedding_, loader.Matrix({{weight(prefix_, names.position_embedding),
                                                          config_.max_position_embeddings}},
                                                        hidden));
  }
  if (!config_.tie_word_embeddings) {
    NamedRows head = {weight("", names.head), vocab};
    if (config_.unit_head_rows) head.form = NamedRows::Form::kUnitRows;
    ASSIGN_OR_RETURN(head_, loader.Matrix({head}, hidden));
  }
  ASSIGN_OR_RETURN(final_norm_, LoadNorm(loader, prefix_ + names.final_norm));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    ASSIGN_OR_RETURN(Layer layer, LoadLayer(loader, names, i));
    layers_.push_back(std::move(layer));
  }
  RETURN_IF_ERROR(CheckNothingIsLeft(loader, weights, names));
  num_parameters_ = loader.num_parameters();
  weight_memory_ = loader.TakeMemory();
  RETURN_IF_ERROR(LoadPositions(loader, limits));
  weight_bytes_ = loader.bytes();
  return Reserve(limits);
}

absl::Status Decoder::CheckNothingIsLeft(const ParameterLoader& loader, const WeightMap& weights,
                                         const TensorNames& names) const {
  for (const TensorInfo& tensor : weights.tensors()) {
    const auto is_end = [&](std::string_view end) { return tensor.name.ends_with(end); };
    const bool tied_head = tensor.name == absl::StrCat(names.head, ".weight");
    if (loader.HasRead(tensor.name) || tied_head || std::ranges::any_of(kNotParameters, is_end)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Printable(tensor.name), ": want a tensor of the ", config_.architecture,
        " architecture, got one that it does not have here: the "
        "model may need a feature that is not supported"));
  }
  return absl::OkStatus();
}

absl::StatusOr<NormParameters> Decoder::LoadNorm(ParameterLoader& loader,
                                                 const std::string& name) const {
  NormParameters norm;
  ASSIGN_OR_RETURN(norm.weight, LoadNormWeight(loader, name + ".weight", config_.hidden_size));
  if (config_.norm_bias) {
    ASSIGN_OR_RETURN(norm.bias, loader.Vector({{name + ".bias", config_.hidden_size}}));
  }
  return norm;
}

absl::StatusOr<Parameter> Decoder::LoadNormWeight(ParameterLoader& loader, const std::string& name,
                                                  int64_t size) const {
  return loader.Vector({{name, size}}, static_cast<float>(config_.norm_weight_offset));
}

std::vector<NamedRows> Decoder::QkvRows(const TensorNames& names, const std::string& prefix,
                                        const char* suffix) const {
  if (names.kv != nullptr) {
    return {{absl::StrCat(prefix, names.q, suffix), q_size()},
            {absl::StrCat(prefix, names.kv, suffix), 2 * kv_size()}};
  }
  if (names.qkv == nullptr) {
    return {{absl::StrCat(prefix, names.q, suffix), q_size()},
            {absl::StrCat(prefix, names.k, suffix), kv_size()},
            {absl::StrCat(prefix, names.v, suffix), kv_size()}};
  }
  NamedRows fused = {absl::StrCat(prefix, names.qkv, suffix), q_size() + 2 * kv_size()};
  if (names.qkv_layout == QkvLayout::kGrouped) {
    const int64_t dim = config_.head_dim, queries = q_size() / config_.num_key_value_heads;
    const auto take = [&](int64_t from, int64_t size) {
      for (int64_t group = 0; group < config_.num_key_value_heads; ++group) {
        const int64_t begin = group * (queries + 2 * dim) + from;
        fused.ranges.push_back({begin, begin + size});
      }
    };
    take(0, queries);
    take(queries, dim);
    take(queries + dim, dim);
  }
  return {fused};
}

absl::StatusOr<Layer> Decoder::LoadLayer(ParameterLoader& loader, const TensorNames& names,
                                         int64_t index) const {
  const int64_t hidden = config_.hidden_size, mlp = config_.intermediate_size;
  const std::string prefix = absl::StrCat(prefix_, names.layer_prefix, index, ".");
  const auto weight = [&](const char* part) { return absl::StrCat(prefix, part, ".weight"); };
  const auto bias = [&](const char* part) { return absl::StrCat(prefix, part, ".bias"); };

  Layer layer;
  layer.window = WindowOf(config_, index);
  ASSIGN_OR_RETURN(layer.attention_norm, LoadNorm(loader, prefix + names.attention_norm));
  if (!config_.shared_norm) {
    ASSIGN_OR_RETURN(layer.mlp_norm, LoadNorm(loader, prefix + names.mlp_norm));
  }
  if (config_.post_norms) {
    ASSIGN_OR_RETURN(layer.attention_post_norm,
                     LoadNorm(loader, prefix + names.attention_post_norm));
    ASSIGN_OR_RETURN(layer.mlp_post_norm, LoadNorm(loader, prefix + names.mlp_post_norm));
  }

  const auto matrix = [&](std::vector<NamedRows> parts, int64_t cols) {
    for (NamedRows& part : parts) {
      if (names.layers_are_transposed) part.form = NamedRows::Form::kTransposed;
    }
    return loader.Matrix(parts, cols);
  };
  ASSIGN_OR_RETURN(layer.qkv, matrix(QkvRows(names, prefix, ".weight"), hidden));
  ASSIGN_OR_RETURN(layer.o, matrix({{weight(names.o), hidden}}, q_size()));
  if (config_.attention_bias) {
    ASSIGN_OR_RETURN(layer.qkv_bias, loader.Vector(QkvRows(names, prefix, ".bias")));
    if (loader.Has(bias(names.o))) {
      ASSIGN_OR_RETURN(layer.o_bias, loader.Vector({{bias(names.o), hidden}}));
    }
  }
  if (config_.qk_norm != QkNormScope::kNone) {
    const bool head = config_.qk_norm == QkNormScope::kHead;
    const int64_t dim = config_.head_dim;
    ASSIGN_OR_RETURN(layer.q_norm,
                     LoadNormWeight(loader, weight(names.q_norm), head ? dim : q_size()));
    ASSIGN_OR_RETURN(layer.k_norm,
                     LoadNormWeight(loader, weight(names.k_norm), head ? dim : kv_size()));
  }

  if (config_.num_experts != 0) {
    ASSIGN_OR_RETURN(layer.mixture, LoadMixture(loader, names, prefix, config_));
    return layer;
  }
  const bool gated = IsGated(config_.activation), fused = gated && names.gate == nullptr;
  std::vector<NamedRows> up_weights, up_biases;
  for (const char* part : {gated ? names.gate : nullptr, names.up}) {
    if (part == nullptr) continue;
    up_weights.push_back({weight(part), fused ? 2 * mlp : mlp});
    up_biases.push_back({bias(part), fused ? 2 * mlp : mlp});
  }
  ASSIGN_OR_RETURN(layer.up, matrix(up_weights, hidden));
  ASSIGN_OR_RETURN(layer.down, matrix({{weight(names.down), hidden}}, mlp));
  if (config_.mlp_bias) {
    ASSIGN_OR_RETURN(layer.up_bias, loader.Vector(up_biases));
    ASSIGN_OR_RETURN(layer.down_bias, loader.Vector({{bias(names.down), hidden}}));
  }
  return layer;
}

absl::Status Decoder::LoadPositions(ParameterLoader& loader, const StepLimits& limits) {
  if (config_.learned_positions) {
    if (limits.max_model_len <= config_.max_position_embeddings) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("max_model_len: want at most the ", config_.max_position_embeddings,
                     " positions that the model has, got ", limits.max_model_len));
  }
  if (config_.alibi_bias_max) {
    const auto heads = static_cast<int32_t>(config_.num_attention_heads);
    std::vector<float> slopes = kernels::AlibiSlopes(heads, *config_.alibi_bias_max);
    if (config_.alibi_is_scaled) {
      for (float& slope : slopes) slope *= static_cast<float>(attention_scale_);
    }
    ASSIGN_OR_RETURN(alibi_slopes_, loader.Upload(slopes));
    return absl::OkStatus();
  }
  const int64_t positions = limits.max_model_len;
  const auto upload = [&](const RopeConfig& rope, Parameter& table) -> absl::Status {
    ASSIGN_OR_RETURN(table, loader.Upload(MakeRopeTable(rope, positions)));
    table.view =
        TensorView(table.buffer.data(), kernels::DType::kF32, {positions, rope.rope_dim / 2, 2});
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(upload(config_.rope, rope_table_));
  return config_.local_rope ? upload(*config_.local_rope, local_rope_table_) : absl::OkStatus();
}

absl::Status Decoder::Reserve(const StepLimits& limits) {
  const int64_t width = SizeOf(backend_.activation_dtype());
  const auto take = [&](kernels::DeviceBuffer& buffer, int64_t rows, int64_t cols) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, backend_.Allocate(rows * cols * width));
    return absl::OkStatus();
  };
  const int64_t hidden = config_.hidden_size;
  RETURN_IF_ERROR(take(act_.hidden, limits.max_tokens, hidden));
  RETURN_IF_ERROR(take(act_.normed, limits.max_tokens, hidden));
  RETURN_IF_ERROR(take(act_.qkv, limits.max_tokens, q_size() + 2 * kv_size()));
  RETURN_IF_ERROR(take(act_.query, limits.max_tokens, q_size()));
  RETURN_IF_ERROR(take(act_.attention, limits.max_tokens, q_size()));
  if (config_.num_experts == 0) {
    RETURN_IF_ERROR(take(act_.mlp, limits.max_tokens, config_.intermediate_size));
  } else {
    // A step of no tokens: what a backend does not do is refused now.
    RETURN_IF_ERROR(Experts(layers_.front(), 0));
  }
  RETURN_IF_ERROR(take(act_.last, limits.max_logit_rows, hidden));
  if (config_.post_norms || config_.learned_positions) {
    RETURN_IF_ERROR(take(act_.branch, limits.max_tokens, hidden));
  }
  if (config_.post_norms) {
    RETURN_IF_ERROR(take(act_.last_branch, limits.max_logit_rows, hidden));
  }
  const int64_t num_logits = limits.max_logit_rows * config_.vocab_size;
  ASSIGN_OR_RETURN(act_.logits, backend_.Allocate(num_logits * SizeOf(kernels::DType::kF32)));
  if (!backend_.info().host_memory) host_logits_.resize(static_cast<size_t>(num_logits));
  ASSIGN_OR_RETURN(device_, DeviceInput::Create(backend_, config_, limits));
  return absl::OkStatus();
}

absl::StatusOr<TensorView> Decoder::Forward(const ModelInput& input, KvCache& cache) {
  RETURN_IF_ERROR(device_.Upload(backend_, input, config_, cache.groups()));
  for (size_t group = 0; group < input.groups.size(); ++group) {
    const std::vector<kernels::BlockCopy>& copies = input.groups[group].copies;
    if (copies.empty() || cache.groups()[group].layers.empty()) continue;
    RETURN_IF_ERROR(backend_.CopyBlocks({.blocks = cache.blocks(group), .copies = copies}));
  }
  RETURN_IF_ERROR(ShiftKeys(input, cache));
  const int64_t num_tokens = input.num_tokens();
  RETURN_IF_ERROR(backend_.Embed({.out = Hidden(num_tokens),
                                  .token_ids = device_.token_ids(),
                                  .weight = embedding_.get(),
                                  .scale = static_cast<float>(config_.embedding_scale)}));
  branch_waits_ = config_.learned_positions;
  if (branch_waits_) {
    RETURN_IF_ERROR(backend_.Embed({.out = Branch(num_tokens),
                                    .token_ids = device_.positions(),
                                    .weight = position_embedding_.get()}));
  }
  if (!embedding_norm_.weight.view.empty()) {
    RETURN_IF_ERROR(Norm(Hidden(num_tokens), Hidden(num_tokens), embedding_norm_));
  }
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    if (config_.num_experts != 0) {
      RETURN_IF_ERROR(Attention(layers_[i], cache.layer(i), cache.group_of(i), num_tokens));
      RETURN_IF_ERROR(Experts(layers_[i], num_tokens));
      continue;
    }
    // In parallel, the feed-forward network reads the residual before attention adds to it.
    if (config_.parallel_residual) RETURN_IF_ERROR(MlpUp(layers_[i], num_tokens));
    RETURN_IF_ERROR(Attention(layers_[i], cache.layer(i), cache.group_of(i), num_tokens));
    if (!config_.parallel_residual) RETURN_IF_ERROR(MlpUp(layers_[i], num_tokens));
    RETURN_IF_ERROR(MlpDown(layers_[i], num_tokens));
  }

  const int64_t num_rows = input.num_logit_rows();
  const TensorView logits(act_.logits.data(), kernels::DType::kF32, {num_rows, config_.vocab_size});
  if (num_rows > 0) {
    const TensorView last = View(act_.last, num_rows, config_.hidden_size);
    const TensorView normed = View(act_.normed, num_rows, config_.hidden_size);
    RETURN_IF_ERROR(backend_.GatherRows(
        {.out = last, .input = Hidden(num_tokens), .rows = device_.logit_rows()}));
    if (branch_waits_) {
      const TensorView branch = View(act_.last_branch, num_rows, config_.hidden_size);
      RETURN_IF_ERROR(backend_.GatherRows(
          {.out = branch, .input = Branch(num_tokens), .rows = device_.logit_rows()}));
      RETURN_IF_ERROR(Norm(normed, branch, final_norm_, last));
    } else {
      RETURN_IF_ERROR(Norm(normed, last, final_norm_));
    }
    RETURN_IF_ERROR(backend_.Linear(
        {.out = logits, .input = normed, .weight = head_ ? head_.get() : embedding_.get()}));
  }
  if (host_logits_.empty()) {
    RETURN_IF_ERROR(backend_.Synchronize());
    return logits;
  }
  RETURN_IF_ERROR(backend_.CopyToHost(host_logits_.data(), logits.raw(), logits.num_bytes()));
  return TensorView(host_logits_.data(), kernels::DType::kF32, {num_rows, config_.vocab_size});
}

absl::Status Decoder::ShiftKeys(const ModelInput& input, KvCache& cache) {
  if (input.shifts.empty() || rope_table_.view.empty()) return absl::OkStatus();
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const bool local = layer.window != 0 && config_.local_rope;
    const RopeConfig& rope = local ? *config_.local_rope : config_.rope;
    RETURN_IF_ERROR(backend_.ShiftKeys({.kv_cache = cache.layer(i),
                                        .rope_table = RopeTable(layer),
                                        .rope_layout = config_.rope.layout,
                                        .table_scale = static_cast<float>(rope.attention_factor),
                                        .shifts = input.shifts}));
  }
  return absl::OkStatus();
}

absl::Status Decoder::Norm(TensorView out, TensorView input, const NormParameters& norm,
                           TensorView residual) {
  return backend_.Norm({.out = out,
                        .input = input,
                        .weight = norm.weight.view,
                        .bias = norm.bias.view,
                        .residual = residual,
                        .kind = config_.norm,
                        .eps = static_cast<float>(config_.norm_eps)});
}

absl::StatusOr<TensorView> Decoder::NormedHidden(int64_t num_tokens, const NormParameters& norm) {
  const TensorView out = View(act_.normed, num_tokens, config_.hidden_size);
  if (std::exchange(branch_waits_, false)) {
    RETURN_IF_ERROR(Norm(out, Branch(num_tokens), norm, Hidden(num_tokens)));
  } else {
    RETURN_IF_ERROR(Norm(out, Hidden(num_tokens), norm));
  }
  return out;
}

absl::Status Decoder::AddToHidden(TensorView input, const Weight& weight, const Parameter& bias,
                                  const NormParameters& post_norm) {
  const int64_t num_tokens = input.dim(0);
  if (!config_.post_norms) {
    return backend_.Linear({.out = Hidden(num_tokens),
                            .input = input,
                            .weight = weight.get(),
                            .bias = bias.view,
                            .residual = Hidden(num_tokens)});
  }
  const TensorView branch = Branch(num_tokens);
  RETURN_IF_ERROR(
      backend_.Linear({.out = branch, .input = input, .weight = weight.get(), .bias = bias.view}));
  branch_waits_ = true;
  return Norm(branch, branch, post_norm);
}

absl::Status Decoder::Attention(const Layer& layer, TensorView kv_cache, size_t kv_group,
                                int64_t num_tokens) {
  const TensorView qkv = View(act_.qkv, num_tokens, q_size() + 2 * kv_size());
  const std::initializer_list<int64_t> heads = {num_tokens, config_.num_attention_heads,
                                                config_.head_dim};
  const TensorView query(act_.query.data(), backend_.activation_dtype(), heads);
  const TensorView attention(act_.attention.data(), backend_.activation_dtype(), heads);

  ASSIGN_OR_RETURN(const TensorView normed, NormedHidden(num_tokens, layer.attention_norm));
  RETURN_IF_ERROR(backend_.Linear({.out = qkv, .input = normed, .weight = layer.qkv.get()}));
  RETURN_IF_ERROR(backend_.QkvPost(
      {.query = query,
       .kv_cache = kv_cache,
       .qkv = qkv,
       .positions = device_.positions(),
       .slot_mapping = device_.slot_mapping(kv_group),
       .rope_table = RopeTable(layer),
       .rope_layout = rope_table_.view.empty() ? kernels::RopeLayout::kNone : config_.rope.layout,
       .bias = layer.qkv_bias.view,
       .clip = static_cast<float>(config_.clip_qkv),
       .qk_norm = {.query_weight = layer.q_norm.view,
                   .key_weight = layer.k_norm.view,
                   .kind = config_.norm,
                   .eps = static_cast<float>(config_.norm_eps)}}));
  RETURN_IF_ERROR(backend_.PagedAttention({.out = attention,
                                           .query = query,
                                           .kv_cache = kv_cache,
                                           .block_table = device_.block_table(kv_group),
                                           .context_lens = device_.context_lens(),
                                           .query_starts = device_.query_starts(),
                                           .alibi_slopes = alibi_slopes_.view,
                                           .scale = static_cast<float>(attention_scale_),
                                           .window = static_cast<int32_t>(layer.window),
                                           .plan = device_.plan(layer.window)}));
  return AddToHidden(View(act_.attention, num_tokens, q_size()), layer.o, layer.o_bias,
                     layer.attention_post_norm);
}

absl::Status Decoder::MlpUp(const Layer& layer, int64_t num_tokens) {
  ASSIGN_OR_RETURN(
      const TensorView normed,
      NormedHidden(num_tokens, config_.shared_norm ? layer.attention_norm : layer.mlp_norm));
  return backend_.Linear({.out = View(act_.mlp, num_tokens, config_.intermediate_size),
                          .input = normed,
                          .weight = layer.up.get(),
                          .bias = layer.up_bias.view,
                          .activation = config_.activation});
}

absl::Status Decoder::MlpDown(const Layer& layer, int64_t num_tokens) {
  return AddToHidden(View(act_.mlp, num_tokens, config_.intermediate_size), layer.down,
                     layer.down_bias, layer.mlp_post_norm);
}

absl::Status Decoder::Experts(const Layer& layer, int64_t num_tokens) {
  ASSIGN_OR_RETURN(const TensorView normed, NormedHidden(num_tokens, layer.mlp_norm));
  return RunMixture(backend_, layer.mixture, config_, normed, Hidden(num_tokens));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> CreateDecoder(const ModelConfig& config,
                                                     const WeightMap& weights,
                                                     const TensorNames& names,
                                                     kernels::Backend& backend,
                                                     const StepLimits& limits) {
  auto model = std::make_unique<Decoder>(config, backend);
  RETURN_IF_ERROR(model->Load(weights, names, limits));
  return model;
}

}  // namespace quire::engine
