// ModelConfig from GGUF metadata (the keys of ggml/docs/gguf.md).

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/model_config_reader.h"
#include "engine/weights/ggml_types.h"
#include "engine/weights/printable.h"

namespace quire::engine {
namespace {

constexpr std::string_view kArchitecture = "llama";
constexpr std::string_view kPrefix = "llama.";

// Keys read below, and keys that change no answer.
constexpr std::array kKnownKeys = std::to_array<std::string_view>({
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "expert_count",
    "expert_used_count",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "attention.layer_norm_epsilon",  // of LayerNorm, which these models do not have
});
// Keys of features that we do not have, with the value that means their absence.
struct AbsentFeature {
  std::string_view key;
  double absent;
  std::string_view feature;
};
constexpr std::array kAbsentFeatures = std::to_array<AbsentFeature>({
    {"expert_shared_count", 0, "an expert for every token"},
    {"leading_dense_block_count", 0, "layers without a mixture of experts"},
    {"logit_scale", 1, "logit scaling"},
    {"residual_scale", 1, "residual scaling"},
    {"embedding_scale", 1, "embedding scaling"},
    {"attention.max_alibi_bias", 0, "ALiBi"},
    {"attention.clamp_kqv", 0, "clamped Q, K and V"},
    {"attention.causal", 1, "non-causal attention"},
    {"attn_logit_softcapping", 0, "soft-capped attention"},
    {"final_logit_softcapping", 0, "soft-capped logits"},
    {"use_parallel_residual", 0, "parallel residual"},
    {"pooling_type", 0, "pooled embeddings"},
    {"rope.scaling.attn_factor", 1, "rotary attention factor"},
});

class Reader {
 public:
  Reader(const GgufMetadata& metadata, const WeightMap& weights)
      : metadata_(metadata), weights_(weights) {}

  absl::StatusOr<ModelConfig> Read();

 private:
  static std::string Key(std::string_view name) { return std::string(kPrefix) + std::string(name); }
  absl::Status Error(std::string_view key, const std::string& wanted_and_got) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s: %s", metadata_.file(), key, wanted_and_got));
  }
  // A required key's NotFound is the file's fault: InvalidArgument.
  absl::StatusOr<int64_t> Int(std::string_view name) const;
  // A number, or an array with the same number for every layer.
  absl::StatusOr<int64_t> IntOfEveryLayer(std::string_view name,
                                          std::optional<int64_t> fallback) const;

  absl::Status CheckFeatures() const;
  absl::Status CheckAbsent(const AbsentFeature& feature) const;
  absl::Status CheckTensors() const;
  absl::Status ReadSizes(ModelConfig& config) const;
  absl::Status ReadVocabSize(ModelConfig& config) const;
  absl::Status ReadRope(ModelConfig& config) const;

  const GgufMetadata& metadata_;
  const WeightMap& weights_;
};

absl::StatusOr<int64_t> Reader::Int(std::string_view name) const {
  absl::StatusOr<int64_t> value = metadata_.Int(Key(name));
  if (absl::IsNotFound(value.status())) return absl::InvalidArgumentError(value.status().message());
  return value;
}

absl::StatusOr<int64_t> Reader::IntOfEveryLayer(std::string_view name,
                                                std::optional<int64_t> fallback) const {
  const GgufValue* value = metadata_.Find(Key(name));
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr || value->type != GgufType::kArray) return Int(name);
  ASSIGN_OR_RETURN(const std::vector<int64_t> per_layer, metadata_.Ints(Key(name)));
  if (per_layer.empty()) return Error(Key(name), "want a number, got an empty array");
  if (std::ranges::count(per_layer, per_layer.front()) != std::ssize(per_layer)) {
    return Error(Key(name),
                 "want the same number for every layer, got numbers that differ: not supported");
  }
  return per_layer.front();
}

absl::Status Reader::CheckAbsent(const AbsentFeature& feature) const {
  const std::string key = Key(feature.key);
  const GgufValue* value = metadata_.Find(key);
  if (value == nullptr) return absl::OkStatus();
  double got = 0;
  if (value->type == GgufType::kBool) {
    ASSIGN_OR_RETURN(const bool flag, metadata_.Bool(key));
    got = flag ? 1 : 0;
  } else {
    ASSIGN_OR_RETURN(got, metadata_.Float(key));
  }
  if (got == feature.absent) return absl::OkStatus();
  return Error(key, absl::StrFormat("want %g, got %g: %s is not supported", feature.absent, got,
                                    feature.feature));
}

absl::Status Reader::CheckFeatures() const {
  for (const AbsentFeature& feature : kAbsentFeatures) RETURN_IF_ERROR(CheckAbsent(feature));
  for (const GgufValue& value : metadata_.values()) {
    if (!value.key.starts_with(kPrefix)) continue;
    const std::string_view name = value.key.substr(kPrefix.size());
    const bool known =
        std::ranges::find(kKnownKeys, name) != kKnownKeys.end() ||
        std::ranges::find(kAbsentFeatures, name, &AbsentFeature::key) != kAbsentFeatures.end();
    if (!known) {
      return Error(Printable(value.key),
                   "want a key of the llama architecture, got one whose meaning is "
                   "not known here: the model may need a feature that is not supported");
    }
  }
  return absl::OkStatus();
}

// A tensor that the architecture does not have stands for a feature it does not have.
absl::Status Reader::CheckTensors() const {
  static constexpr std::array kTop = std::to_array<std::string_view>(
      {"token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight"});
  static constexpr std::array kOfLayer = std::to_array<std::string_view>(
      {"attn_norm.weight",    "attn_q.weight",       "attn_k.weight",        "attn_v.weight",
       "attn_output.weight",  "attn_q.bias",         "attn_k.bias",          "attn_v.bias",
       "attn_output.bias",    "ffn_norm.weight",     "ffn_gate.weight",      "ffn_up.weight",
       "ffn_down.weight",     "ffn_gate.bias",       "ffn_up.bias",          "ffn_down.bias",
       "attn_rot_embd",       "ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight",
       "ffn_down_exps.weight"});
  // Of one expert: its number comes before ".weight".
  static constexpr std::array kOfExpert =
      std::to_array<std::string_view>({"ffn_gate.", "ffn_up.", "ffn_down."});
  const auto is_of_expert = [](std::string_view part) {
    return std::ranges::any_of(kOfExpert, [&](std::string_view start) {
      if (!part.starts_with(start) || !part.ends_with(".weight")) return false;
      part.remove_prefix(start.size());
      const size_t digits = part.find_first_not_of("0123456789");
      return digits > 0 && part.substr(digits) == ".weight";
    });
  };
  const auto check = [&](const std::string& name) -> absl::Status {
    std::string_view rest = name;
    bool known = std::ranges::find(kTop, rest) != kTop.end();
    if (rest.starts_with("blk.")) {
      rest.remove_prefix(4);
      rest.remove_prefix(std::min(rest.find_first_not_of("0123456789"), rest.size()));
      known =
          rest.starts_with('.') && (std::ranges::find(kOfLayer, rest.substr(1)) != kOfLayer.end() ||
                                    is_of_expert(rest.substr(1)));
    }
    if (known) return absl::OkStatus();
    return Error("tensor " + Printable(name),
                 "want a tensor of the llama architecture, got one that it does "
                 "not have: the model may need a feature that is not supported");
  };
  for (const TensorInfo& tensor : weights_.tensors()) RETURN_IF_ERROR(check(tensor.name));
  for (const UnusableTensor& tensor : weights_.unusable_tensors()) {
    return Error("tensor " + Printable(tensor.name),
                 absl::StrFormat("want one of the types %s, got %s", SupportedGgmlTypes(),
                                 tensor.type_name));
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadSizes(ModelConfig& config) const {
  ASSIGN_OR_RETURN(config.num_hidden_layers, Int("block_count"));
  ASSIGN_OR_RETURN(config.hidden_size, Int("embedding_length"));
  ASSIGN_OR_RETURN(config.max_position_embeddings, Int("context_length"));
  ASSIGN_OR_RETURN(config.intermediate_size, IntOfEveryLayer("feed_forward_length", std::nullopt));
  ASSIGN_OR_RETURN(config.num_attention_heads,
                   IntOfEveryLayer("attention.head_count", std::nullopt));
  ASSIGN_OR_RETURN(config.num_key_value_heads,
                   IntOfEveryLayer("attention.head_count_kv", config.num_attention_heads));

  ASSIGN_OR_RETURN(config.num_experts, metadata_.IntOr(Key("expert_count"), 0));
  ASSIGN_OR_RETURN(config.num_experts_per_tok, metadata_.IntOr(Key("expert_used_count"), 0));

  const int64_t heads = config.num_attention_heads;
  if (metadata_.Has(Key("attention.key_length"))) {
    ASSIGN_OR_RETURN(config.head_dim, Int("attention.key_length"));
  } else if (heads > 0 && config.hidden_size % heads == 0) {
    config.head_dim = config.hidden_size / heads;
  } else {
    return Error(Key("attention.head_count"),
                 absl::StrFormat("want a divisor of embedding_length %d, got %d",
                                 config.hidden_size, heads));
  }
  ASSIGN_OR_RETURN(const int64_t value_length,
                   metadata_.IntOr(Key("attention.value_length"), config.head_dim));
  if (value_length != config.head_dim) {
    return Error(Key("attention.value_length"),
                 absl::StrFormat("want the head size of the keys, %d, got %d", config.head_dim,
                                 value_length));
  }

  absl::StatusOr<double> eps = metadata_.Float(Key("attention.layer_norm_rms_epsilon"));
  if (!eps.ok()) return absl::InvalidArgumentError(eps.status().message());
  config.norm_eps = *eps;

  ASSIGN_OR_RETURN(const int64_t window, metadata_.IntOr(Key("attention.sliding_window"), 0));
  if (window != 0 && window < config.max_position_embeddings) {
    return Error(
        Key("attention.sliding_window"),
        absl::StrFormat("want none, or the context of %d at least, got %d: sliding windows are not "
                        "supported",
                        config.max_position_embeddings, window));
  }
  return absl::OkStatus();
}

// The embedding has the last word where it is there; the metadata must agree with it.
absl::Status Reader::ReadVocabSize(ModelConfig& config) const {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  std::string source(kTokens);
  if (const GgufValue* tokens = metadata_.Find(kTokens)) {
    config.vocab_size = tokens->count;
  } else {
    source = Key("vocab_size");
    ASSIGN_OR_RETURN(config.vocab_size, Int("vocab_size"));
  }
  const TensorInfo* embedding = weights_.Find("token_embd.weight");
  if (embedding != nullptr && embedding->shape.size() == 2 &&
      embedding->shape[0] != config.vocab_size) {
    return Error(source, absl::StrFormat("want the %d tokens of token_embd.weight, got %d",
                                         embedding->shape[0], config.vocab_size));
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadRope(ModelConfig& config) const {
  RopeConfig& rope = config.rope;
  rope.layout = kernels::RopeLayout::kInterleaved;
  ASSIGN_OR_RETURN(rope.theta, metadata_.FloatOr(Key("rope.freq_base"), 10000.0));
  ASSIGN_OR_RETURN(rope.rope_dim, metadata_.IntOr(Key("rope.dimension_count"), config.head_dim));

  // A factor without a type is linear, and 0 is none, as llama.cpp reads them.
  ASSIGN_OR_RETURN(const std::string_view type,
                   metadata_.StringOr(Key("rope.scaling.type"), "linear"));
  if (type != "none" && type != "linear") {
    return Error(
        Key("rope.scaling.type"),
        absl::StrFormat(
            "want none or linear (llama3 is the tensor rope_freqs.weight), got \"%s\": not "
            "supported",
            Printable(type)));
  }
  ASSIGN_OR_RETURN(const double old_factor, metadata_.FloatOr(Key("rope.scale_linear"), 0.0));
  ASSIGN_OR_RETURN(const double factor, metadata_.FloatOr(Key("rope.scaling.factor"), old_factor));
  if (type == "linear" && factor != 0.0 && factor != 1.0) {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = factor;
  }
  if (weights_.Find("rope_freqs.weight") != nullptr) {
    if (rope.rope_dim < 2 || rope.rope_dim > config.head_dim)
      return absl::OkStatus();  // Validate says so
    auto divisors = weights_.Vector("rope_freqs.weight", rope.rope_dim / 2);
    if (!divisors.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %s", metadata_.file(), base::ToStd(divisors.status().message())));
    }
    rope.frequency_divisors = *std::move(divisors);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> Reader::Read() {
  absl::StatusOr<std::string_view> architecture = metadata_.String("general.architecture");
  if (!architecture.ok()) return absl::InvalidArgumentError(architecture.status().message());
  if (*architecture != kArchitecture) {
    return Error("general.architecture", absl::StrFormat("want one of: %s; got \"%s\"",
                                                         kArchitecture, Printable(*architecture)));
  }
  RETURN_IF_ERROR(CheckFeatures());
  RETURN_IF_ERROR(CheckTensors());
  ModelConfig config{.architecture = std::string(kArchitecture)};
  ASSIGN_OR_RETURN(const std::string_view name, metadata_.StringOr("general.name", ""));
  config.name = std::string(name);
  RETURN_IF_ERROR(ReadSizes(config));
  RETURN_IF_ERROR(ReadVocabSize(config));
  RETURN_IF_ERROR(ReadRope(config));
  config.tie_word_embeddings = weights_.Find("output.weight") == nullptr;
  config.attention_bias = weights_.Find("blk.0.attn_q.bias") != nullptr;
  config.mlp_bias = weights_.Find("blk.0.ffn_gate.bias") != nullptr;
  config.weight_type = DominantWeightType(weights_);
  RETURN_IF_ERROR(Validate(config, metadata_.file()));
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufModelConfig(const GgufMetadata& metadata,
                                                const WeightMap& weights) {
  return Reader(metadata, weights).Read();
}

}  // namespace quire::engine
