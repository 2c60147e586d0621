#include "engine/model/architectures/rope_fields.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/reproducible_math.h"
#include "base/status_macros.h"
#include "files/printable.h"

namespace quire::engine {
namespace {

constexpr std::string_view kScalings[] = {"linear", "dynamic", "llama3", "yarn"};

absl::Status ReadYarn(const HfFields& fields, RopeConfig& rope) {
  rope.scaling = RopeScaling::kYarn;
  RETURN_IF_ERROR(fields.Float("beta_fast", 32.0, rope.beta_fast));
  RETURN_IF_ERROR(fields.Float("beta_slow", 1.0, rope.beta_slow));
  RETURN_IF_ERROR(fields.Bool("truncate", true, rope.truncate));
  double mscale = 0.0, all_dims = 0.0;
  RETURN_IF_ERROR(fields.Float("mscale", 0.0, mscale));
  RETURN_IF_ERROR(fields.Float("mscale_all_dim", 0.0, all_dims));
  const bool scaled = mscale != 0.0 && all_dims != 0.0;
  const double usual =
      scaled ? YarnAttentionFactor(rope.factor, mscale) / YarnAttentionFactor(rope.factor, all_dims)
             : YarnAttentionFactor(rope.factor);
  return fields.Float("attention_factor", usual, rope.attention_factor);
}

absl::Status ReadFactors(const HfFields& fields, const char* key, std::vector<double>& factors) {
  const nlohmann::json* list = fields.Find(key);
  const auto is_number = [](const nlohmann::json& value) { return value.is_number(); };
  if (list == nullptr || !list->is_array() || !std::ranges::all_of(*list, is_number)) {
    return fields.Wrong(key, "a list of numbers");
  }
  factors = list->get<std::vector<double>>();
  return absl::OkStatus();
}

// Reads longrope. One attention_factor applies to both lists of factors. The default of
// attention_factor is computed from `factor` and the trained context.
absl::Status ReadLongRope(const HfFields& fields, const ModelConfig& config,
                          const RopeOutside& outside, RopeConfig& rope) {
  const int64_t trained = outside.longrope_context;
  rope.scaling = RopeScaling::kLongRope;
  RETURN_IF_ERROR(ReadFactors(fields, "short_factor", rope.short_factors));
  RETURN_IF_ERROR(ReadFactors(fields, "long_factor", rope.long_factors));
  if (!outside.longrope_mscale) {
    RETURN_IF_ERROR(fields.WantNull({"short_mscale", "long_mscale"}));
  }
  RETURN_IF_ERROR(fields.Int("original_max_position_embeddings", trained,
                             rope.original_max_position_embeddings));
  if (rope.original_max_position_embeddings != trained || trained < 2) {
    return fields.Error("original_max_position_embeddings",
                        absl::StrFormat("the %d outside, 2 at least", trained),
                        absl::StrCat(rope.original_max_position_embeddings));
  }
  const auto context = static_cast<double>(trained);
  RETURN_IF_ERROR(fields.Float(
      "factor", static_cast<double>(config.max_position_embeddings) / context, rope.factor));
  rope.factor = std::max(rope.factor, 1.0);
  RETURN_IF_ERROR(fields.Float("attention_factor",
                               std::sqrt(1.0 + base::Log(rope.factor) / base::Log(context)),
                               rope.attention_factor));
  double long_mscale = rope.attention_factor;
  RETURN_IF_ERROR(fields.Float("long_mscale", long_mscale, long_mscale));
  RETURN_IF_ERROR(fields.Float("short_mscale", rope.attention_factor, rope.attention_factor));
  if (long_mscale == rope.attention_factor) return absl::OkStatus();
  return fields.Error("long_mscale", absl::StrCat("short_mscale ", rope.attention_factor),
                      absl::StrCat(long_mscale));
}

}  // namespace

absl::Status ReadRopeParameters(const HfFields& fields, const ModelConfig& config, RopeConfig& rope,
                                const RopeOutside& outside) {
  std::string type;
  RETURN_IF_ERROR(fields.String("type", "default", type));  // the older spelling of rope_type
  RETURN_IF_ERROR(fields.String("rope_type", type, type));
  RETURN_IF_ERROR(fields.Float("rope_theta", rope.theta, rope.theta));
  if (!outside.partial_rotary) RETURN_IF_ERROR(fields.WantOne({"partial_rotary_factor"}));
  for (const auto& [layer_type, parameters] : fields.object().items()) {
    if (parameters.is_object())
      return fields.Wrong(layer_type, "the same parameters for all layers");
  }
  if (type == "default") return absl::OkStatus();
  if (outside.longrope_context != 0) {
    // "su" and "yarn" are older names of longrope. The classes with longrope have no other scaling.
    if (type == "longrope" || type == "su" || type == "yarn") {
      return ReadLongRope(fields, config, outside, rope);
    }
    return fields.Error("rope_type", "default or longrope", files::Printable(type));
  }
  if (std::ranges::find(kScalings, type) == std::ranges::end(kScalings)) {
    return fields.Error("rope_type", "default, linear, dynamic, llama3 or yarn",
                        files::Printable(type) + ": not supported");
  }
  RETURN_IF_ERROR(fields.Float("factor", std::nullopt, rope.factor));
  if (type == "linear") {
    if (rope.factor != 1.0) rope.scaling = RopeScaling::kLinear;
    return absl::OkStatus();
  }
  const auto read_context = [&](std::optional<int64_t> fallback) {
    return fields.Int("original_max_position_embeddings", fallback,
                      rope.original_max_position_embeddings);
  };
  if (type == "dynamic") {
    rope.scaling = RopeScaling::kDynamic;
    // transformers uses max_position_embeddings of the config, and ignores the trained context in
    // this object.
    rope.original_max_position_embeddings = config.max_position_embeddings;
    return absl::OkStatus();
  }
  if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    RETURN_IF_ERROR(read_context(std::nullopt));
    RETURN_IF_ERROR(fields.Float("low_freq_factor", std::nullopt, rope.low_freq_factor));
    return fields.Float("high_freq_factor", std::nullopt, rope.high_freq_factor);
  }
  RETURN_IF_ERROR(read_context(config.max_position_embeddings));
  return ReadYarn(fields, rope);
}

}  // namespace quire::engine
