#include "engine/model/llama.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "engine/model/layers/device_input.h"
#include "engine/model/layers/parameter_loader.h"
#include "engine/model/rope_table.h"

namespace quire::engine {
namespace {

using kernels::TensorView;

// Tensor names of one file family; a layer's are prefixed with `layer_prefix` + index + ".".
struct Names {
  const char* embedding;
  const char* final_norm;
  const char* head;
  const char* layer_prefix;
  const char *attention_norm, *q, *k, *v, *o;
  const char *mlp_norm, *gate, *up, *down;
};

constexpr Names kGgufNames = {
    .embedding = "token_embd",
    .final_norm = "output_norm",
    .head = "output",
    .layer_prefix = "blk.",
    .attention_norm = "attn_norm",
    .q = "attn_q",
    .k = "attn_k",
    .v = "attn_v",
    .o = "attn_output",
    .mlp_norm = "ffn_norm",
    .gate = "ffn_gate",
    .up = "ffn_up",
    .down = "ffn_down",
};

constexpr Names kHuggingFaceNames = {
    .embedding = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .layer_prefix = "model.layers.",
    .attention_norm = "input_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .mlp_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

using Weight = std::unique_ptr<kernels::PreparedWeight>;

struct Layer {
  Parameter attention_norm, mlp_norm;
  Weight qkv, o, gate_up, down;
  Parameter qkv_bias, o_bias, gate_up_bias, down_bias;  // empty views without biases
};

// Rows of activations for the largest step, one buffer each.
struct Activations {
  kernels::DeviceBuffer hidden, normed, qkv, query, attention, mlp, last, logits;
};

class Llama final : public Model {
 public:
  Llama(const ModelConfig& config, kernels::Backend& backend)
      : config_(config), backend_(backend) {}

  absl::Status Load(const WeightMap& weights, const Names& names, const StepLimits& limits);

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  int64_t num_parameters() const override { return num_parameters_; }
  absl::StatusOr<TensorView> Forward(const ModelInput& input, KvCache& cache) override;

 private:
  absl::StatusOr<Layer> LoadLayer(ParameterLoader& loader, const Names& names, int64_t index) const;
  absl::Status Attention(const Layer& layer, TensorView kv_cache, int64_t num_tokens);
  absl::Status Mlp(const Layer& layer, int64_t num_tokens);
  // RMSNorm of the first `num_rows` rows of `input`, into the normed buffer.
  absl::StatusOr<TensorView> Norm(TensorView input, const Parameter& weight);

  int64_t q_size() const { return config_.num_attention_heads * config_.head_dim; }
  int64_t kv_size() const { return config_.num_key_value_heads * config_.head_dim; }
  // The first `rows` rows of an activation buffer.
  TensorView View(const kernels::DeviceBuffer& buffer, int64_t rows, int64_t cols) const {
    return TensorView(buffer.data(), backend_.activation_dtype(), {rows, cols});
  }
  TensorView Hidden(int64_t rows) const { return View(act_.hidden, rows, config_.hidden_size); }

  // Constant after Load.
  const ModelConfig config_;
  kernels::Backend& backend_;  // not owned
  Weight embedding_, head_;    // head_ is null when tied
  Parameter final_norm_, rope_table_;
  std::vector<Layer> layers_;
  int64_t num_parameters_ = 0;
  int64_t weight_bytes_ = 0;

  // Step thread only.
  Activations act_;
  std::vector<float> host_logits_;  // where the backend's memory is not the host's
  DeviceInput device_;
};

absl::Status Llama::Load(const WeightMap& weights, const Names& names, const StepLimits& limits) {
  ParameterLoader loader(weights, backend_);
  const int64_t hidden = config_.hidden_size;
  const auto weight_name = [](const char* name) { return absl::StrCat(name, ".weight"); };

  ASSIGN_OR_RETURN(embedding_,
                   loader.Matrix({{weight_name(names.embedding), config_.vocab_size}}, hidden));
  if (!config_.tie_word_embeddings) {
    ASSIGN_OR_RETURN(head_, loader.Matrix({{weight_name(names.head), config_.vocab_size}}, hidden));
  }
  ASSIGN_OR_RETURN(final_norm_, loader.Vector({{weight_name(names.final_norm), hidden}}));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    ASSIGN_OR_RETURN(Layer layer, LoadLayer(loader, names, i));
    layers_.push_back(std::move(layer));
  }
  num_parameters_ = loader.num_parameters();

  ASSIGN_OR_RETURN(rope_table_, loader.Upload(MakeRopeTable(config_.rope, limits.max_model_len)));
  rope_table_.view = TensorView(rope_table_.buffer.data(), kernels::DType::kF32,
                                {limits.max_model_len, config_.rope.rope_dim / 2, 2});
  weight_bytes_ = loader.bytes();

  const int64_t width = SizeOf(backend_.activation_dtype());
  const auto take = [&](kernels::DeviceBuffer& buffer, int64_t rows, int64_t cols) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, backend_.Allocate(rows * cols * width));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(take(act_.hidden, limits.max_tokens, hidden));
  RETURN_IF_ERROR(take(act_.normed, limits.max_tokens, hidden));
  RETURN_IF_ERROR(take(act_.qkv, limits.max_tokens, q_size() + 2 * kv_size()));
  RETURN_IF_ERROR(take(act_.query, limits.max_tokens, q_size()));
  RETURN_IF_ERROR(take(act_.attention, limits.max_tokens, q_size()));
  RETURN_IF_ERROR(take(act_.mlp, limits.max_tokens, config_.intermediate_size));
  RETURN_IF_ERROR(take(act_.last, limits.max_logit_rows, hidden));
  const int64_t num_logits = limits.max_logit_rows * config_.vocab_size;
  ASSIGN_OR_RETURN(act_.logits, backend_.Allocate(num_logits * SizeOf(kernels::DType::kF32)));
  if (!backend_.info().host_memory) host_logits_.resize(static_cast<size_t>(num_logits));
  ASSIGN_OR_RETURN(device_, DeviceInput::Create(backend_, limits));
  return absl::OkStatus();
}

absl::StatusOr<Layer> Llama::LoadLayer(ParameterLoader& loader, const Names& names,
                                       int64_t index) const {
  const int64_t hidden = config_.hidden_size;
  const int64_t mlp = config_.intermediate_size;
  const auto name = [&](const char* part, const char* suffix) {
    return absl::StrCat(names.layer_prefix, index, ".", part, suffix);
  };
  const auto weight = [&](const char* part) { return name(part, ".weight"); };
  const auto bias = [&](const char* part) { return name(part, ".bias"); };

  Layer layer;
  ASSIGN_OR_RETURN(layer.attention_norm, loader.Vector({{weight(names.attention_norm), hidden}}));
  ASSIGN_OR_RETURN(layer.qkv, loader.Matrix({{weight(names.q), q_size()},
                                             {weight(names.k), kv_size()},
                                             {weight(names.v), kv_size()}},
                                            hidden));
  ASSIGN_OR_RETURN(layer.o, loader.Matrix({{weight(names.o), hidden}}, q_size()));
  ASSIGN_OR_RETURN(layer.mlp_norm, loader.Vector({{weight(names.mlp_norm), hidden}}));
  ASSIGN_OR_RETURN(layer.gate_up,
                   loader.Matrix({{weight(names.gate), mlp}, {weight(names.up), mlp}}, hidden));
  ASSIGN_OR_RETURN(layer.down, loader.Matrix({{weight(names.down), hidden}}, mlp));
  if (config_.attention_bias) {
    ASSIGN_OR_RETURN(layer.qkv_bias, loader.Vector({{bias(names.q), q_size()},
                                                    {bias(names.k), kv_size()},
                                                    {bias(names.v), kv_size()}}));
    if (loader.Has(bias(names.o))) {
      ASSIGN_OR_RETURN(layer.o_bias, loader.Vector({{bias(names.o), hidden}}));
    }
  }
  if (config_.mlp_bias) {
    ASSIGN_OR_RETURN(layer.gate_up_bias,
                     loader.Vector({{bias(names.gate), mlp}, {bias(names.up), mlp}}));
    ASSIGN_OR_RETURN(layer.down_bias, loader.Vector({{bias(names.down), hidden}}));
  }
  return layer;
}

absl::StatusOr<TensorView> Llama::Forward(const ModelInput& input, KvCache& cache) {
  RETURN_IF_ERROR(device_.Upload(backend_, input, config_));
  if (!input.copies.empty()) {
    RETURN_IF_ERROR(backend_.CopyBlocks({.blocks = cache.blocks(), .copies = input.copies}));
  }
  const int64_t num_tokens = input.num_tokens();
  RETURN_IF_ERROR(backend_.Embed(
      {.out = Hidden(num_tokens), .token_ids = device_.token_ids(), .weight = embedding_.get()}));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    RETURN_IF_ERROR(Attention(layers_[i], cache.layer(i), num_tokens));
    RETURN_IF_ERROR(Mlp(layers_[i], num_tokens));
  }

  const int64_t num_rows = input.num_logit_rows();
  const TensorView logits(act_.logits.data(), kernels::DType::kF32, {num_rows, config_.vocab_size});
  if (num_rows > 0) {
    const TensorView last = View(act_.last, num_rows, config_.hidden_size);
    RETURN_IF_ERROR(backend_.GatherRows(
        {.out = last, .input = Hidden(num_tokens), .rows = device_.logit_rows()}));
    ASSIGN_OR_RETURN(const TensorView normed, Norm(last, final_norm_));
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

absl::StatusOr<TensorView> Llama::Norm(TensorView input, const Parameter& weight) {
  const TensorView out = View(act_.normed, input.dim(0), config_.hidden_size);
  RETURN_IF_ERROR(backend_.Norm({.out = out,
                                 .input = input,
                                 .weight = weight.view,
                                 .kind = kernels::NormKind::kRmsNorm,
                                 .eps = static_cast<float>(config_.norm_eps)}));
  return out;
}

absl::Status Llama::Attention(const Layer& layer, TensorView kv_cache, int64_t num_tokens) {
  const TensorView qkv = View(act_.qkv, num_tokens, q_size() + 2 * kv_size());
  const std::initializer_list<int64_t> heads = {num_tokens, config_.num_attention_heads,
                                                config_.head_dim};
  const TensorView query(act_.query.data(), backend_.activation_dtype(), heads);
  const TensorView attention(act_.attention.data(), backend_.activation_dtype(), heads);

  ASSIGN_OR_RETURN(const TensorView normed, Norm(Hidden(num_tokens), layer.attention_norm));
  RETURN_IF_ERROR(backend_.Linear({.out = qkv, .input = normed, .weight = layer.qkv.get()}));
  RETURN_IF_ERROR(backend_.QkvPost({.query = query,
                                    .kv_cache = kv_cache,
                                    .qkv = qkv,
                                    .positions = device_.positions(),
                                    .slot_mapping = device_.slot_mapping(),
                                    .rope_table = rope_table_.view,
                                    .rope_layout = config_.rope.layout,
                                    .bias = layer.qkv_bias.view}));
  RETURN_IF_ERROR(backend_.PagedAttention(
      {.out = attention,
       .query = query,
       .kv_cache = kv_cache,
       .block_table = device_.block_table(),
       .context_lens = device_.context_lens(),
       .query_starts = device_.query_starts(),
       .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
       .plan = device_.plan()}));
  return backend_.Linear({.out = Hidden(num_tokens),
                          .input = View(act_.attention, num_tokens, q_size()),
                          .weight = layer.o.get(),
                          .bias = layer.o_bias.view,
                          .residual = Hidden(num_tokens)});
}

absl::Status Llama::Mlp(const Layer& layer, int64_t num_tokens) {
  const TensorView mlp = View(act_.mlp, num_tokens, config_.intermediate_size);
  ASSIGN_OR_RETURN(const TensorView normed, Norm(Hidden(num_tokens), layer.mlp_norm));
  RETURN_IF_ERROR(backend_.Linear({.out = mlp,
                                   .input = normed,
                                   .weight = layer.gate_up.get(),
                                   .bias = layer.gate_up_bias.view,
                                   .activation = kernels::Activation::kSiluMul}));
  return backend_.Linear({.out = Hidden(num_tokens),
                          .input = mlp,
                          .weight = layer.down.get(),
                          .bias = layer.down_bias.view,
                          .residual = Hidden(num_tokens)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> CreateLlama(const ModelConfig& config,
                                                   const WeightMap& weights, TensorNaming naming,
                                                   kernels::Backend& backend,
                                                   const StepLimits& limits) {
  auto model = std::make_unique<Llama>(config, backend);
  RETURN_IF_ERROR(
      model->Load(weights, naming == TensorNaming::kGguf ? kGgufNames : kHuggingFaceNames, limits));
  return model;
}

}  // namespace quire::engine
