#include "engine/model/model_config_reader.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/model/model_draft.h"
#include "files/ggml_types.h"

namespace quire::engine {
namespace {

// These limits are far beyond any existing model, and small enough that no product of sizes
// overflows.
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxExperts = 1024;                   // experts of one layer
constexpr int64_t kMaxExpertsOfAll = int64_t{1} << 17;  // experts of all layers together
constexpr int64_t kMaxSize = int64_t{1} << 22;          // hidden, intermediate
constexpr int64_t kMaxVocab = int64_t{1} << 24;         // token ids are int32
constexpr int64_t kMaxContext = int64_t{1} << 30;       // positions are int32
constexpr double kMaxSoftCap = 1e6;
// The head_dims that the attention and RoPE kernels take.
constexpr int64_t kMinHeadDim = 8;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kHeadDimStep = 8;

class Checker {
 public:
  explicit Checker(std::string_view file) : file_(file) {}

  void Range(std::string_view field, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) {
      Fail(field, absl::StrFormat("want %d to %d, got %d", least, most, value));
    }
  }
  void Range(std::string_view field, double value, double least, double most) {
    if (!(value >= least && value <= most)) {  // NaN fails too
      Fail(field, absl::StrFormat("want %g to %g, got %g", least, most, value));
    }
  }
  void Fail(std::string_view field, const std::string& wanted_and_got) {
    if (!status_.ok()) return;  // the first failure is the cause
    status_ =
        absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s", file_, field, wanted_and_got));
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::string_view file_;
  absl::Status status_;
};

void CheckRope(const RopeConfig& rope, int64_t key_dim, Checker& check) {
  check.Range("rope theta", rope.theta, 1.0, 1e12);
  check.Range("rope dimensions", rope.rope_dim, 2, key_dim);
  if (rope.rope_dim % 2 != 0) {
    check.Fail("rope dimensions", absl::StrFormat("want an even number, got %d", rope.rope_dim));
  }
  if (rope.scaling != RopeScaling::kNone) check.Range("rope scaling factor", rope.factor, 1.0, 1e6);
  if (rope.scaling == RopeScaling::kLlama3) {
    check.Range("rope low_freq_factor", rope.low_freq_factor, 1e-3, 1e6);
    check.Range("rope high_freq_factor", rope.high_freq_factor, 1e-3, 1e6);
    if (rope.high_freq_factor < rope.low_freq_factor) {
      check.Fail("rope high_freq_factor",
                 absl::StrFormat("want at least low_freq_factor %g, got %g", rope.low_freq_factor,
                                 rope.high_freq_factor));
    }
  }
  if (rope.scaling == RopeScaling::kYarn) {
    if (rope.theta == 1.0) check.Fail("rope theta", "want more than 1 with YaRN, got 1");
    check.Range("rope beta_fast", rope.beta_fast, 1e-3, 1e6);
    check.Range("rope beta_slow", rope.beta_slow, 1e-3, 1e6);
  }
  check.Range("rope attention_factor", rope.attention_factor, 1e-3, 1e3);
  if (rope.scaling == RopeScaling::kLongRope) {
    for (const auto& [name, factors] : {std::pair("rope short_factor", &rope.short_factors),
                                        std::pair("rope long_factor", &rope.long_factors)}) {
      const auto size = static_cast<int64_t>(factors->size());
      if (size != rope.rope_dim / 2) {
        check.Fail(name, absl::StrFormat("want %d numbers, got %d", rope.rope_dim / 2, size));
      }
      for (const double factor : *factors) check.Range(name, factor, 1e-6, 1e9);
    }
  }
  if (rope.scaling != RopeScaling::kNone && rope.scaling != RopeScaling::kLinear) {
    check.Range("rope original_max_position_embeddings", rope.original_max_position_embeddings, 1,
                kMaxContext);
  }
  const auto divisors = static_cast<int64_t>(rope.frequency_divisors.size());
  if (divisors != 0 && divisors != rope.rope_dim / 2) {
    check.Fail("rope frequency divisors",
               absl::StrFormat("want %d, got %d", rope.rope_dim / 2, divisors));
  }
  for (const float divisor : rope.frequency_divisors) {
    check.Range("rope frequency divisors", static_cast<double>(divisor), 1e-6, 1e9);
  }
}

void CheckPositions(const ModelConfig& config, Checker& check) {
  if (config.alibi_bias_max) {
    // All layers share the slopes, one for each head.
    for (const LayerSpec& layer : config.layers) {
      const int64_t heads = config.layers[0].attention.num_heads;
      if (layer.attention.num_heads == heads) continue;
      check.Fail("num_attention_heads", absl::StrFormat("want %d in every layer with ALiBi, got %d",
                                                        heads, layer.attention.num_heads));
    }
    return check.Range("alibi_bias_max", *config.alibi_bias_max, 0.0, 1e3);
  }
  for (const LayerSpec& layer : config.layers) {
    check.Range("rope of a layer", layer.attention.rope, -1, std::ssize(config.ropes) - 1);
  }
  if (!check.status().ok()) return;
  for (int i = 0; i < std::ssize(config.ropes); ++i) {
    int64_t key_dim = kMaxHeadDim;  // the shortest key that the rope turns
    for (const LayerSpec& layer : config.layers) {
      if (layer.attention.rope == i) key_dim = std::min(key_dim, layer.attention.key_dim);
    }
    CheckRope(config.ropes[i], key_dim, check);
  }
}

void CheckLayer(const LayerSpec& layer, Checker& check) {
  const AttentionSpec& attention = layer.attention;
  const FeedForwardSpec& feed_forward = layer.feed_forward;
  check.Range("intermediate_size", feed_forward.inner_size, 1, kMaxSize);
  check.Range("num_attention_heads", attention.num_heads, 1, kMaxHeads);
  check.Range("num_key_value_heads", attention.num_kv_heads, 1, attention.num_heads);
  check.Range("head_dim", attention.key_dim, kMinHeadDim, kMaxHeadDim);
  check.Range("v_head_dim", attention.value_dim, kMinHeadDim, kMaxHeadDim);
  check.Range(attention.pattern.rule == kernels::AttentionPattern::Rule::kChunk
                  ? "attention_chunk_size"
              : attention.pattern.has_holes() ? "blocksparse_block_size"
                                              : "sliding_window",
              attention.pattern.tokens, 0, kMaxContext);
  check.Range("interval of query growth", attention.query_growth.interval, 0, kMaxContext);
  check.Range("rate of query growth", attention.query_growth.rate, 0.0, 1e3);
  check.Range("attention_value_scale", attention.value_scale, 1e-3, 1e3);
  for (const float scale : {attention.cache_scales.k, attention.cache_scales.v}) {
    check.Range("scales of an fp8 cache", double{scale}, double{kernels::CacheScales::kSmallest},
                double{kernels::CacheScales::kLargest});
  }
  check.Range("attn_logit_softcapping", attention.soft_cap, 0.0, kMaxSoftCap);
  check.Range("num_experts", feed_forward.experts.count, 0, kMaxExperts);
  if (feed_forward.activation == kernels::Activation::kClampedSiluMul) {
    check.Range("swiglu_limit", feed_forward.activation_limit, 1e-6, 1e6);
  }
  if (!check.status().ok()) return;
  if (layer.has_experts()) {
    check.Range("num_experts_per_tok", feed_forward.experts.per_token, 1,
                feed_forward.experts.count);
    check.Range("inner size of the shared expert", feed_forward.experts.shared_inner_size, 0,
                kMaxSize);
    // The decoder computes a mixture only after attention, and adds its output to the residual
    // without a norm.
    if (layer.is_parallel()) check.Fail("num_experts", "want 0 with a parallel residual");
    if (layer.residual == Residual::kPostNorms) {
      check.Fail("num_experts", "want 0 with norms after each layer");
    }
  }
  for (const auto& [name, dim] :
       {std::pair("head_dim", attention.key_dim), std::pair("v_head_dim", attention.value_dim)}) {
    if (dim % kHeadDimStep == 0) continue;
    check.Fail(name, absl::StrFormat("want a multiple of %d, got %d", kHeadDimStep, dim));
  }
  if (attention.num_heads % attention.num_kv_heads != 0) {
    check.Fail("num_key_value_heads",
               absl::StrFormat("want a divisor of num_attention_heads %d, got %d",
                               attention.num_heads, attention.num_kv_heads));
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ModelDraft::Complete(std::string_view file) && {
  if (num_hidden_layers < 1 || num_hidden_layers > kMaxLayers) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: num_hidden_layers: want 1 to %d, got %d",
                                                      file, kMaxLayers, num_hidden_layers));
  }
  if (alibi_bias_max || learned_positions) {
    ropes.clear();
    every.attention.rope = -1;
  }
  layers.assign(static_cast<size_t>(num_hidden_layers), every);
  for (const auto& change : changes_) {
    for (size_t i = 0; i < layers.size(); ++i) change(static_cast<int64_t>(i), layers[i]);
  }
  RETURN_IF_ERROR(Validate(*this, file));
  return static_cast<ModelConfig&&>(*this);
}

absl::Status Validate(const ModelConfig& config, std::string_view file) {
  Checker check(file);
  check.Range("vocab_size", config.vocab_size, 1, kMaxVocab);
  check.Range("hidden_size", config.hidden_size, 1, kMaxSize);
  check.Range("num_hidden_layers", config.num_layers(), 1, kMaxLayers);
  check.Range("max_position_embeddings", config.max_position_embeddings, 1, kMaxContext);
  check.Range("norm_eps", config.norm_eps, 0.0, 0.1);
  check.Range("final_logit_softcapping", config.logit_soft_cap, 0.0, kMaxSoftCap);
  int64_t num_experts = 0;
  for (const LayerSpec& layer : config.layers) {
    CheckLayer(layer, check);
    num_experts += layer.feed_forward.experts.count;
  }
  check.Range("num_experts of all layers", num_experts, 0, kMaxExpertsOfAll);
  if (!check.status().ok()) return check.status();
  CheckPositions(config, check);
  return check.status();
}

std::string DominantWeightType(const files::WeightMap& weights) {
  std::map<kernels::WeightType, int64_t> counts;
  for (const files::TensorInfo& tensor : weights.tensors()) {
    counts[tensor.type] += files::NumElements(tensor.shape);
  }
  int64_t most = 0;
  std::string name;
  for (const auto& [type, count] : counts) {
    if (count <= most) continue;
    most = count;
    name = kernels::Traits(type).name;
  }
  return name;
}

int64_t KvElementsPerToken(const ModelConfig& config) {
  int64_t elements = 0;
  for (const LayerSpec& layer : config.layers) {
    elements += layer.attention.k_size() + layer.attention.v_size();
  }
  return elements;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const files::OpenedModel& model) {
  if (model.gguf) return ReadGgufModelConfig(*model.gguf, *model.weights);
  if (model.hf)
    return ReadHfModelConfig(model.hf->config, model.path + "/config.json", *model.weights);
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: weights alone do not say what the model is: want the Hugging Face directory "
      "around it, with config.json, or a .gguf file",
      model.path));
}

}  // namespace quire::engine
