#include "engine/model/decoder.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/model/decoder_weights.h"
#include "engine/model/layers/device_input.h"
#include "engine/model/layers/step_recordings.h"
#include "engine/model/shard.h"

namespace quire::engine {
namespace {

using kernels::TensorView;

// Buffers of activations, each large enough for the largest step.
struct Activations {
  kernels::DeviceBuffer hidden, normed, qkv, query, attention, mlp, last, logits;
  kernels::DeviceBuffer branch, last_branch;  // results still to be added to hidden and to last
};

class Decoder final : public Model {
 public:
  Decoder(ModelConfig config, DecoderWeights weights, kernels::Backend& backend,
          kernels::Communicator* communicator)
      : config_(std::move(config)),
        weights_(std::move(weights)),
        backend_(backend),
        communicator_(communicator) {}

  // Allocates the memory that a step needs beside the weights.
  absl::Status Reserve(const StepLimits& limits);

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return weights_.bytes; }
  int64_t step_bytes() const override { return step_bytes_; }
  int64_t num_parameters() const override { return weights_.num_parameters; }
  absl::StatusOr<TensorView> Forward(const ModelInput& input, KvCache& cache) override;

 private:
  // Enqueues the products of `num_tokens` tokens, of each kind of layer those of one, and of
  // `num_rows` rows of logits.
  absl::Status EnqueueProducts(int64_t num_tokens, int64_t num_rows);
  // Enqueues the ops of an uploaded step, from the tokens to the logits. Steps with equal
  // launch keys enqueue equal launches.
  absl::Status EnqueueOps(const TensorView& drawn, KvCache& cache);
  // Rotates the cached keys of the blocks in input.shifts to their new positions. Skips layers
  // without rotary positions, whose keys do not depend on the position.
  absl::Status ShiftKeys(const ModelInput& input, KvCache& cache);
  absl::Status Attention(const Layer& layer, const kernels::CacheView& kv_cache, size_t kv_group,
                         int64_t num_tokens);
  // MlpUp computes the hidden units of the feed-forward network for `normed`. MlpDown computes the
  // network's output from them and adds it to the residual.
  absl::Status MlpUp(const Layer& layer, TensorView normed);
  absl::Status MlpDown(const Layer& layer, int64_t num_tokens);
  // Computes the logits of rows whose final norm is `normed`.
  absl::Status Head(TensorView normed);
  // Normalises the residual and calls MlpUp.
  absl::Status NormAndMlpUp(const Layer& layer, int64_t num_tokens);
  // Adds the outputs of the layer's mixture and of its shared network, if any, to the residual.
  absl::Status Experts(const Layer& layer, int64_t num_tokens);
  // Multiplies `input` by `weight`, adds `bias`, and sums over the ranks. Without a post norm, adds
  // the result to the residual. With one, writes the norm of the result into act_.branch, which is
  // added to the residual at its next norm.
  absl::Status AddToHidden(TensorView input, const Weight& weight, const Parameter& bias,
                           const NormParameters& post_norm);
  absl::Status SumOverRanks(const TensorView& tensor) {
    return communicator_ == nullptr ? absl::OkStatus() : communicator_->AllReduceSum(tensor);
  }
  // Adds act_.branch to the residual if branch_waits_ is set. Returns the norm of the residual.
  absl::StatusOr<TensorView> NormedHidden(int64_t num_tokens, const NormParameters& norm);
  // Writes the norm of each row of `input` into `out`. If a residual is given, first adds `input`
  // to the residual and writes the norm of the sum.
  absl::Status Norm(TensorView out, TensorView input, const NormParameters& norm,
                    TensorView residual = {});

  // Returns the first `rows` rows of an activation buffer.
  TensorView View(const kernels::DeviceBuffer& buffer, int64_t rows, int64_t cols) const {
    return TensorView(buffer.data(), backend_.activation_dtype(), {rows, cols});
  }
  TensorView Hidden(int64_t rows) const { return View(act_.hidden, rows, config_.hidden_size); }
  // Returns an empty view for a layer without rotary positions.
  TensorView RopeTable(const AttentionSpec& attention) const {
    return attention.rope < 0 ? TensorView() : weights_.rope_tables[attention.rope].view;
  }
  TensorView Logits(int64_t rows) const {
    return TensorView(act_.logits.data(), kernels::DType::kF32, {rows, config_.vocab_size});
  }
  TensorView Branch(int64_t rows) const { return View(act_.branch, rows, config_.hidden_size); }

  const ModelConfig config_;
  const DecoderWeights weights_;
  kernels::Backend& backend_;                  // not owned
  kernels::Communicator* const communicator_;  // not owned; null: the model is on one device

  // Step thread only.
  Activations act_;
  int64_t step_bytes_ = 0;
  bool branch_waits_ = false;  // act_.branch is to be added to act_.hidden
  DeviceInput device_;
  StepRecordings recordings_;
};

absl::Status Decoder::Reserve(const StepLimits& limits) {
  const auto allocate = [this](kernels::DeviceBuffer& buffer, int64_t bytes) -> absl::Status {
    step_bytes_ += bytes;
    ASSIGN_OR_RETURN(buffer, backend_.Allocate(bytes));
    return absl::OkStatus();
  };
  const int64_t width = SizeOf(backend_.activation_dtype()), hidden = config_.hidden_size;
  const int64_t tokens = limits.max_tokens * width, rows = limits.max_logit_rows * width;
  RETURN_IF_ERROR(allocate(act_.hidden, tokens * hidden));
  RETURN_IF_ERROR(allocate(act_.normed, tokens * hidden));
  const int64_t q_size =
      LargestOf(config_, [](const LayerSpec& layer) { return layer.attention.q_size(); });
  const int64_t qkv_size =
      LargestOf(config_, [](const LayerSpec& layer) { return layer.attention.qkv_size(); });
  const int64_t o_size =
      LargestOf(config_, [](const LayerSpec& layer) { return layer.attention.o_size(); });
  const int64_t inner_size = LargestOf(
      config_, [](const LayerSpec& layer) { return layer.feed_forward.dense_inner_size(); });
  const bool post_norms = LargestOf(config_, [](const LayerSpec& layer) {
    return layer.residual == Residual::kPostNorms ? 1 : 0;
  });
  RETURN_IF_ERROR(allocate(act_.qkv, tokens * qkv_size));
  RETURN_IF_ERROR(allocate(act_.query, tokens * q_size));
  RETURN_IF_ERROR(allocate(act_.attention, tokens * o_size));
  if (inner_size != 0) RETURN_IF_ERROR(allocate(act_.mlp, tokens * inner_size));
  RETURN_IF_ERROR(allocate(act_.last, rows * hidden));
  if (post_norms || config_.learned_positions) {
    RETURN_IF_ERROR(allocate(act_.branch, tokens * hidden));
  }
  if (post_norms) RETURN_IF_ERROR(allocate(act_.last_branch, rows * hidden));
  const int64_t num_logits = limits.max_logit_rows * config_.vocab_size;
  RETURN_IF_ERROR(allocate(act_.logits, num_logits * int64_t{SizeOf(kernels::DType::kF32)}));
  // Runs experts on 0 tokens. If the backend does not compute mixtures, it refuses the model now.
  for (const Layer& layer : weights_.layers) {
    if (layer.spec.has_experts()) RETURN_IF_ERROR(Experts(layer, 0));
  }
  ASSIGN_OR_RETURN(device_, DeviceInput::Create(backend_, config_, limits));
  return backend_.Rehearse([&] {
    return EnqueueProducts(limits.max_tokens, std::min(limits.max_tokens, limits.max_logit_rows));
  });
}

absl::Status Decoder::EnqueueProducts(int64_t num_tokens, int64_t num_rows) {
  const Layer* previous = nullptr;
  for (const Layer& layer : weights_.layers) {
    const Layer* const before = std::exchange(previous, &layer);
    if (before != nullptr && before->spec == layer.spec) continue;
    const AttentionSpec& spec = layer.spec.attention;
    RETURN_IF_ERROR(backend_.Linear({.out = View(act_.qkv, num_tokens, spec.qkv_size()),
                                     .input = Hidden(num_tokens),
                                     .weight = layer.qkv.get()}));
    RETURN_IF_ERROR(AddToHidden(View(act_.attention, num_tokens, spec.o_size()), layer.o,
                                layer.o_bias, layer.attention_post_norm));
    if (layer.spec.has_experts()) {
      RETURN_IF_ERROR(Experts(layer, num_tokens));
    } else {
      RETURN_IF_ERROR(NormAndMlpUp(layer, num_tokens));
      RETURN_IF_ERROR(MlpDown(layer, num_tokens));
    }
  }
  return Head(View(act_.normed, num_rows, config_.hidden_size));
}

absl::StatusOr<TensorView> Decoder::Forward(const ModelInput& input, KvCache& cache) {
  RETURN_IF_ERROR(device_.Upload(backend_, input, cache));
  for (size_t group = 0; group < input.groups.size(); ++group) {
    const std::vector<kernels::BlockCopy>& copies = input.groups[group].copies;
    if (copies.empty() || cache.groups()[group].layers.empty()) continue;
    RETURN_IF_ERROR(backend_.CopyBlocks({.blocks = cache.blocks(group), .copies = copies}));
  }
  RETURN_IF_ERROR(ShiftKeys(input, cache));
  const auto enqueue = [&] { return EnqueueOps(input.drawn, cache); };
  if (device_.can_replay()) {
    RETURN_IF_ERROR(recordings_.Run(backend_, device_.launch_key(), enqueue));
  } else {
    RETURN_IF_ERROR(enqueue());
  }
  return Logits(input.num_logit_rows());
}

absl::Status Decoder::EnqueueOps(const TensorView& drawn, KvCache& cache) {
  const int64_t num_tokens = device_.num_tokens();
  if (device_.token_sources().dim(0) > 0) {
    RETURN_IF_ERROR(backend_.TakeTokens(
        {.token_ids = device_.token_ids(), .drawn = drawn, .sources = device_.token_sources()}));
  }
  RETURN_IF_ERROR(backend_.Embed({.out = Hidden(num_tokens),
                                  .token_ids = device_.token_ids(),
                                  .weight = weights_.embedding.get(),
                                  .scale = static_cast<float>(config_.embedding_scale)}));
  branch_waits_ = config_.learned_positions;
  if (branch_waits_) {
    RETURN_IF_ERROR(backend_.Embed({.out = Branch(num_tokens),
                                    .token_ids = device_.positions(),
                                    .weight = weights_.position_embedding.get()}));
  }
  if (!weights_.embedding_norm.weight.view.empty()) {
    RETURN_IF_ERROR(Norm(Hidden(num_tokens), Hidden(num_tokens), weights_.embedding_norm));
  }
  for (int64_t i = 0; i < config_.num_layers(); ++i) {
    const Layer& layer = weights_.layers[i];
    // With a parallel residual, the feed-forward network reads the residual before attention adds
    // to it.
    const bool parallel = layer.spec.is_parallel();
    if (parallel) RETURN_IF_ERROR(NormAndMlpUp(layer, num_tokens));
    RETURN_IF_ERROR(Attention(layer, cache.layer(i), cache.group_of(i), num_tokens));
    if (layer.spec.has_experts()) {
      RETURN_IF_ERROR(Experts(layer, num_tokens));
      continue;
    }
    if (!parallel) RETURN_IF_ERROR(NormAndMlpUp(layer, num_tokens));
    RETURN_IF_ERROR(MlpDown(layer, num_tokens));
  }

  const int64_t num_rows = device_.num_logit_rows();
  if (num_rows > 0) {
    const TensorView last = View(act_.last, num_rows, config_.hidden_size);
    const TensorView normed = View(act_.normed, num_rows, config_.hidden_size);
    RETURN_IF_ERROR(backend_.GatherRows(
        {.out = last, .input = Hidden(num_tokens), .rows = device_.logit_rows()}));
    if (branch_waits_) {
      const TensorView branch = View(act_.last_branch, num_rows, config_.hidden_size);
      RETURN_IF_ERROR(backend_.GatherRows(
          {.out = branch, .input = Branch(num_tokens), .rows = device_.logit_rows()}));
      RETURN_IF_ERROR(Norm(normed, branch, weights_.final_norm, last));
    } else {
      RETURN_IF_ERROR(Norm(normed, last, weights_.final_norm));
    }
    return Head(normed);
  }
  return absl::OkStatus();
}

absl::Status Decoder::Head(TensorView normed) {
  return backend_.Linear({.out = Logits(normed.dim(0)),
                          .input = normed,
                          .weight = weights_.head ? weights_.head.get() : weights_.embedding.get(),
                          .soft_cap = static_cast<float>(config_.logit_soft_cap)});
}

absl::Status Decoder::ShiftKeys(const ModelInput& input, KvCache& cache) {
  if (input.shifts.empty()) return absl::OkStatus();
  for (int64_t i = 0; i < config_.num_layers(); ++i) {
    const AttentionSpec& attention = config_.layers[i].attention;
    if (attention.rope < 0) continue;
    const RopeConfig& rope = config_.ropes[attention.rope];
    RETURN_IF_ERROR(backend_.ShiftKeys({.kv_cache = cache.layer(i),
                                        .rope_table = RopeTable(attention),
                                        .rope_layout = rope.layout,
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
  if (post_norm.weight.view.empty()) {
    // Rank 0 adds the residual, which all ranks have, once.
    const bool adds_residual = communicator_ == nullptr || communicator_->rank().index == 0;
    RETURN_IF_ERROR(
        backend_.Linear({.out = Hidden(num_tokens),
                         .input = input,
                         .weight = weight.get(),
                         .bias = bias.view,
                         .residual = adds_residual ? Hidden(num_tokens) : TensorView()}));
    return SumOverRanks(Hidden(num_tokens));
  }
  const TensorView branch = Branch(num_tokens);
  RETURN_IF_ERROR(
      backend_.Linear({.out = branch, .input = input, .weight = weight.get(), .bias = bias.view}));
  RETURN_IF_ERROR(SumOverRanks(branch));
  branch_waits_ = true;
  return Norm(branch, branch, post_norm);
}

absl::Status Decoder::Attention(const Layer& layer, const kernels::CacheView& kv_cache,
                                size_t kv_group, int64_t num_tokens) {
  const AttentionSpec& spec = layer.spec.attention;
  const TensorView qkv = View(act_.qkv, num_tokens, spec.qkv_size());
  const TensorView query(act_.query.data(), backend_.activation_dtype(),
                         {num_tokens, spec.num_heads, spec.key_dim});
  const TensorView attention(act_.attention.data(), backend_.activation_dtype(),
                             {num_tokens, spec.num_heads, spec.value_dim});

  ASSIGN_OR_RETURN(const TensorView normed, NormedHidden(num_tokens, layer.attention_norm));
  RETURN_IF_ERROR(backend_.Linear({.out = qkv, .input = normed, .weight = layer.qkv.get()}));
  RETURN_IF_ERROR(backend_.QkvPost(
      {.query = query,
       .kv_cache = kv_cache,
       .qkv = qkv,
       .positions = device_.positions(),
       .slot_mapping = device_.slot_mapping(kv_group),
       .rope_table = RopeTable(spec),
       .rope_layout = spec.rope < 0 ? kernels::RopeLayout::kNone : config_.ropes[spec.rope].layout,
       .query_scales = weights_.query_scales.at(spec.query_growth).view,
       .bias = layer.qkv_bias.view,
       .value_scale = static_cast<float>(spec.value_scale),
       .clip = static_cast<float>(spec.clip),
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
                                           .alibi_slopes = weights_.alibi_slopes.view,
                                           .alibi_is_rounded = spec.alibi_is_rounded,
                                           .sinks = layer.sinks.view,
                                           .scale = static_cast<float>(AttentionScale(spec)),
                                           .soft_cap = static_cast<float>(spec.soft_cap),
                                           .pattern = spec.pattern,
                                           .plan = device_.plan(spec.plan_key())}));
  return AddToHidden(View(act_.attention, num_tokens, spec.o_size()), layer.o, layer.o_bias,
                     layer.attention_post_norm);
}

absl::Status Decoder::NormAndMlpUp(const Layer& layer, int64_t num_tokens) {
  const bool one_norm = layer.spec.residual == Residual::kParallelOneNorm;
  ASSIGN_OR_RETURN(const TensorView normed,
                   NormedHidden(num_tokens, one_norm ? layer.attention_norm : layer.mlp_norm));
  return MlpUp(layer, normed);
}

absl::Status Decoder::MlpUp(const Layer& layer, TensorView normed) {
  return backend_.Linear(
      {.out = View(act_.mlp, normed.dim(0), layer.spec.feed_forward.dense_inner_size()),
       .input = normed,
       .weight = layer.up.get(),
       .bias = layer.up_bias.view,
       .activation = layer.spec.feed_forward.activation,
       .activation_limit = static_cast<float>(layer.spec.feed_forward.activation_limit)});
}

absl::Status Decoder::MlpDown(const Layer& layer, int64_t num_tokens) {
  return AddToHidden(View(act_.mlp, num_tokens, layer.spec.feed_forward.dense_inner_size()),
                     layer.down, layer.down_bias, layer.mlp_post_norm);
}

absl::Status Decoder::Experts(const Layer& layer, int64_t num_tokens) {
  ASSIGN_OR_RETURN(const TensorView normed, NormedHidden(num_tokens, layer.mlp_norm));
  if (layer.up != nullptr) {
    RETURN_IF_ERROR(MlpUp(layer, normed));
    RETURN_IF_ERROR(MlpDown(layer, num_tokens));
  }
  return RunMixture(backend_, layer.mixture, layer.spec.feed_forward, normed, Hidden(num_tokens));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> CreateDecoder(
    const ModelConfig& config, const files::WeightMap& weights, const TensorNames& names,
    kernels::Backend& backend, const StepLimits& limits, kernels::Communicator* communicator) {
  const kernels::Rank rank = communicator == nullptr ? kernels::Rank() : communicator->rank();
  ASSIGN_OR_RETURN(ModelConfig part, Shard(config, rank));
  ASSIGN_OR_RETURN(DecoderWeights loaded,
                   LoadDecoderWeights(config, part, rank, weights, names, backend, limits));
  auto model = std::make_unique<Decoder>(std::move(part), std::move(loaded), backend, communicator);
  RETURN_IF_ERROR(model->Reserve(limits));
  return model;
}

}  // namespace quire::engine
