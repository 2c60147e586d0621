// ModelConfig from the config.json of Hugging Face transformers, in the spellings of versions 4
// and 5.

#include <array>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/model_config_reader.h"
#include "engine/weights/printable.h"

namespace quire::engine {
namespace {

using nlohmann::json;

// A class of transformers, and what it takes for keys that config.json leaves out.
struct HfArchitecture {
  std::string_view name;
  int64_t num_key_value_heads;  // 0: num_attention_heads
  int64_t max_position_embeddings;
  int64_t sliding_window;  // 0: none
};
constexpr std::array kArchitectures = std::to_array<HfArchitecture>({
    {"LlamaForCausalLM", 0, 2048, 0},
    {"MistralForCausalLM", 8, 4096 * 32, 4096},
});

std::string ArchitectureNames() {
  std::string names;
  for (const HfArchitecture& architecture : kArchitectures) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", base::ToAbsl(architecture.name));
  }
  return names;
}

// Members of one JSON object. A key that is absent or null takes the fallback; without one it is
// required.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool Has(const char* key) const { return object_.contains(key); }
  // Null when absent or null.
  const json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  absl::Status Error(std::string_view key, std::string_view wanted, std::string_view got) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s: want %s, got %s", where_, key, wanted, got));
  }
  absl::Status Wrong(std::string_view key, std::string_view wanted) const {
    const json* value = Find(std::string(key).c_str());
    return Error(key, wanted, value == nullptr ? "nothing" : Printable(value->dump()));
  }

  absl::Status Int(const char* key, std::optional<int64_t> fallback, int64_t& out) const {
    const json* value = Find(key);
    if (value == nullptr && fallback) {
      out = *fallback;
      return absl::OkStatus();
    }
    const bool fits =
        value != nullptr && value->is_number_integer() &&
        !(value->is_number_unsigned() &&
          value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (!fits) return Wrong(key, "an integer");
    out = value->get<int64_t>();
    return absl::OkStatus();
  }
  absl::Status Float(const char* key, std::optional<double> fallback, double& out) const {
    const json* value = Find(key);
    if (value == nullptr && fallback) {
      out = *fallback;
      return absl::OkStatus();
    }
    if (value == nullptr || !value->is_number()) return Wrong(key, "a number");
    out = value->get<double>();
    return absl::OkStatus();
  }
  absl::Status Bool(const char* key, bool fallback, bool& out) const {
    const json* value = Find(key);
    if (value != nullptr && !value->is_boolean()) return Wrong(key, "true or false");
    out = value != nullptr ? value->get<bool>() : fallback;
    return absl::OkStatus();
  }
  absl::Status String(const char* key, std::string_view fallback, std::string& out) const {
    const json* value = Find(key);
    if (value != nullptr && !value->is_string()) return Wrong(key, "a string");
    out = value != nullptr ? value->get<std::string>() : std::string(fallback);
    return absl::OkStatus();
  }

 private:
  const json& object_;
  const std::string where_;
};

absl::StatusOr<const HfArchitecture*> ReadArchitecture(const Fields& fields) {
  const json* names = fields.Find("architectures");
  const bool one =
      names != nullptr && names->is_array() && names->size() == 1 && (*names)[0].is_string();
  if (one) {
    for (const HfArchitecture& architecture : kArchitectures) {
      if (architecture.name == (*names)[0].get_ref<const std::string&>()) return &architecture;
    }
  }
  return fields.Wrong("architectures", "one of: " + ArchitectureNames());
}

// Members whose only supported value is the one that leaves the feature out.
absl::Status CheckFeatures(const Fields& fields) {
  std::string activation;
  RETURN_IF_ERROR(fields.String("hidden_act", "silu", activation));
  if (activation != "silu" && activation != "swish") return fields.Wrong("hidden_act", "silu");
  if (const json* quantization = fields.Find("quantization_config")) {
    const json method =
        quantization->is_object() ? quantization->value("quant_method", json()) : json();
    return fields.Error("quantization_config",
                        "weights in F32, F16 or BF16 (quantised ones are read from GGUF files)",
                        method.is_string() ? method.get<std::string>() : "a quantisation");
  }
  for (const char* key : {"rope_interleaved", "alibi", "use_qk_norm", "qk_norm", "parallel_attn",
                          "is_encoder_decoder"}) {
    bool on = false;
    RETURN_IF_ERROR(fields.Bool(key, false, on));
    if (on) return fields.Wrong(key, "false");
  }
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    int64_t experts = 0;
    RETURN_IF_ERROR(fields.Int(key, 0, experts));
    if (experts != 0) return fields.Wrong(key, "0: a mixture of experts is not supported");
  }
  for (const char* key : {"partial_rotary_factor", "rope_pct", "logit_scale", "logits_scaling",
                          "embedding_multiplier", "residual_multiplier"}) {
    double factor = 1.0;
    RETURN_IF_ERROR(fields.Float(key, 1.0, factor));
    if (factor != 1.0) return fields.Wrong(key, "1");
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"}) {
    if (fields.Find(key) != nullptr) return fields.Wrong(key, "null");
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const Fields& fields, const HfArchitecture& architecture,
                       ModelConfig& config) {
  RETURN_IF_ERROR(fields.Int("vocab_size", std::nullopt, config.vocab_size));
  RETURN_IF_ERROR(fields.Int("hidden_size", std::nullopt, config.hidden_size));
  RETURN_IF_ERROR(fields.Int("intermediate_size", std::nullopt, config.intermediate_size));
  RETURN_IF_ERROR(fields.Int("num_hidden_layers", std::nullopt, config.num_hidden_layers));
  RETURN_IF_ERROR(fields.Int("num_attention_heads", std::nullopt, config.num_attention_heads));
  const int64_t heads = config.num_attention_heads;
  const bool written = fields.Has("num_key_value_heads");  // null: num_attention_heads
  RETURN_IF_ERROR(fields.Int(
      "num_key_value_heads",
      written || architecture.num_key_value_heads == 0 ? heads : architecture.num_key_value_heads,
      config.num_key_value_heads));
  if (fields.Find("head_dim") == nullptr && (heads <= 0 || config.hidden_size % heads != 0)) {
    return fields.Wrong("num_attention_heads",
                        absl::StrFormat("a divisor of hidden_size %d", config.hidden_size));
  }
  RETURN_IF_ERROR(
      fields.Int("head_dim", heads > 0 ? config.hidden_size / heads : 0, config.head_dim));
  RETURN_IF_ERROR(fields.Int("max_position_embeddings", architecture.max_position_embeddings,
                             config.max_position_embeddings));
  return fields.Float("rms_norm_eps", 1e-6, config.norm_eps);
}

// Mistral's class has a window unless config.json says null.
absl::Status CheckWindow(const Fields& fields, const HfArchitecture& architecture,
                         int64_t context) {
  int64_t window = fields.Has("sliding_window") ? 0 : architecture.sliding_window;
  RETURN_IF_ERROR(fields.Int("sliding_window", window, window));
  bool used = true;  // Qwen's switch, kept by some conversions
  RETURN_IF_ERROR(fields.Bool("use_sliding_window", true, used));
  if (used && window != 0 && window < context) {
    return fields.Error("sliding_window",
                        absl::StrFormat("null, or the context of %d at least", context),
                        absl::StrFormat("%d: sliding windows are not supported", window));
  }
  return absl::OkStatus();
}

// `scaling` is rope_scaling of transformers 4, or rope_parameters of 5, which holds theta too.
absl::Status ReadScaling(const json& scaling, const std::string& where, ModelConfig& config) {
  const Fields fields(scaling, where);
  RopeConfig& rope = config.rope;
  std::string type;
  RETURN_IF_ERROR(fields.String("type", "default", type));  // the older spelling
  RETURN_IF_ERROR(fields.String("rope_type", type, type));
  RETURN_IF_ERROR(fields.Float("rope_theta", rope.theta, rope.theta));
  double partial = 1.0;
  RETURN_IF_ERROR(fields.Float("partial_rotary_factor", 1.0, partial));
  if (partial != 1.0) return fields.Wrong("partial_rotary_factor", "1");
  for (const auto& [layer_type, parameters] : scaling.items()) {
    if (parameters.is_object())
      return fields.Wrong(layer_type, "the same parameters for all layers");
  }
  if (type == "default") return absl::OkStatus();
  if (type == "linear") {
    RETURN_IF_ERROR(fields.Float("factor", std::nullopt, rope.factor));
    if (rope.factor != 1.0) rope.scaling = RopeScaling::kLinear;
    return absl::OkStatus();
  }
  if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    RETURN_IF_ERROR(fields.Float("factor", std::nullopt, rope.factor));
    RETURN_IF_ERROR(fields.Float("low_freq_factor", std::nullopt, rope.low_freq_factor));
    RETURN_IF_ERROR(fields.Float("high_freq_factor", std::nullopt, rope.high_freq_factor));
    return fields.Int("original_max_position_embeddings", std::nullopt,
                      rope.original_max_position_embeddings);
  }
  return fields.Error("rope_type", "default, linear or llama3",
                      Printable(type) + ": not supported");
}

absl::Status ReadRope(const Fields& fields, const std::string& file, ModelConfig& config) {
  config.rope.layout = kernels::RopeLayout::kHalfSplit;
  config.rope.rope_dim = config.head_dim;
  RETURN_IF_ERROR(fields.Float("rope_theta", 10000.0, config.rope.theta));
  const char* key = fields.Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const json* scaling = fields.Find(key);
  if (scaling == nullptr) return absl::OkStatus();
  if (!scaling->is_object()) return fields.Wrong(key, "an object or null");
  return ReadScaling(*scaling, absl::StrFormat("%s: %s", file, key), config);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHfModelConfig(const json& object, std::string_view file,
                                              const WeightMap& weights) {
  const std::string where(file);
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: want a JSON object, got %s", where, object.type_name()));
  }
  const Fields fields(object, where);
  ASSIGN_OR_RETURN(const HfArchitecture* architecture, ReadArchitecture(fields));
  RETURN_IF_ERROR(CheckFeatures(fields));
  ModelConfig config{.architecture = "llama"};
  RETURN_IF_ERROR(fields.String("_name_or_path", "", config.name));
  RETURN_IF_ERROR(ReadSizes(fields, *architecture, config));
  RETURN_IF_ERROR(CheckWindow(fields, *architecture, config.max_position_embeddings));
  RETURN_IF_ERROR(ReadRope(fields, where, config));
  RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", false, config.tie_word_embeddings));
  RETURN_IF_ERROR(fields.Bool("attention_bias", false, config.attention_bias));
  RETURN_IF_ERROR(fields.Bool("mlp_bias", false, config.mlp_bias));
  config.weight_type = DominantWeightType(weights);
  RETURN_IF_ERROR(Validate(config, where));
  return config;
}

}  // namespace quire::engine
