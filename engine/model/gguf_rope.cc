#include "engine/model/gguf_rope.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "files/printable.h"

namespace quire::engine {
namespace {

// Reads YaRN as llama.cpp does, with the factor of cosines and sines that it has besides
// attn_factor: yarn_attn_factor * YarnAttentionFactor(rope.factor). RopeConfig::truncate stays
// true, because llama.cpp rounds the ends of the blend to whole dimensions.
absl::Status ReadYarn(GgufFields& fields, RopeConfig& rope) {
  rope.scaling = RopeScaling::kYarn;
  RETURN_IF_ERROR(fields.Float("rope.scaling.yarn_beta_fast", rope.beta_fast, rope.beta_fast));
  RETURN_IF_ERROR(fields.Float("rope.scaling.yarn_beta_slow", rope.beta_slow, rope.beta_slow));
  double extrapolated = 1.0;
  RETURN_IF_ERROR(fields.Float("rope.scaling.yarn_ext_factor", 1.0, extrapolated));
  if (extrapolated != 1.0) {
    return fields.Error("rope.scaling.yarn_ext_factor",
                        absl::StrFormat("want 1, got %g: not supported", extrapolated));
  }
  double yarn_attention = 1.0;
  RETURN_IF_ERROR(fields.Float("rope.scaling.yarn_attn_factor", 1.0, yarn_attention));
  rope.attention_factor *= yarn_attention * YarnAttentionFactor(rope.factor);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGgufRope(GgufFields& fields, ModelDraft& draft) {
  RopeConfig& rope = draft.ropes[0];
  RETURN_IF_ERROR(fields.Float("rope.freq_base", 10000.0, rope.theta));
  RETURN_IF_ERROR(fields.Int("rope.dimension_count", draft.every.attention.key_dim, rope.rope_dim));

  // As in llama.cpp, a factor without a type is linear, and a factor of 0 is no scaling.
  std::string type;
  RETURN_IF_ERROR(fields.String("rope.scaling.type", "linear", type));
  if (type != "none" && type != "linear" && type != "yarn") {
    return fields.Error(
        "rope.scaling.type",
        absl::StrFormat("want none, linear or yarn (llama3 is the tensor rope_freqs.weight), got "
                        "\"%s\": not supported",
                        files::Printable(type)));
  }
  double factor = 0.0;
  RETURN_IF_ERROR(fields.Float("rope.scale_linear", 0.0, factor));
  RETURN_IF_ERROR(fields.Float("rope.scaling.factor", factor, factor));
  int64_t trained = 0;
  RETURN_IF_ERROR(
      fields.Int("rope.scaling.original_context_length", draft.max_position_embeddings, trained));
  RETURN_IF_ERROR(fields.Float("rope.scaling.attn_factor", 1.0, rope.attention_factor));
  const bool scaled = factor != 0.0 && factor != 1.0;
  if (type == "linear" && scaled) {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = factor;
  } else if (type == "yarn") {
    rope.factor = scaled ? factor : 1.0;
    rope.original_max_position_embeddings = trained;
    RETURN_IF_ERROR(ReadYarn(fields, rope));
  }
  if (!fields.HasTensor("rope_freqs.weight")) return absl::OkStatus();
  if (rope.rope_dim < 2 || rope.rope_dim > draft.every.attention.key_dim) {
    return absl::OkStatus();  // Validate reports the error
  }
  auto divisors = fields.weights().Vector("rope_freqs.weight", rope.rope_dim / 2);
  if (!divisors.ok()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", fields.metadata().file(),
                                                      base::ToStd(divisors.status().message())));
  }
  rope.frequency_divisors = *std::move(divisors);
  return absl::OkStatus();
}

void WriteGgufRope(const ModelConfig& config, GgufKeys& keys) {
  if (config.ropes.empty()) return;
  const RopeConfig& rope = config.ropes[0];
  keys.Int("rope.dimension_count", rope.rope_dim);
  keys.Float("rope.freq_base", rope.theta);
  if (rope.scaling == RopeScaling::kLinear) {
    keys.String("rope.scaling.type", "linear");
    keys.Float("rope.scaling.factor", rope.factor);
  } else if (rope.scaling == RopeScaling::kYarn) {
    keys.String("rope.scaling.type", "yarn");
    keys.Float("rope.scaling.factor", rope.factor);
    keys.Int("rope.scaling.original_context_length", rope.original_max_position_embeddings);
    keys.Float("rope.scaling.yarn_beta_fast", rope.beta_fast);
    keys.Float("rope.scaling.yarn_beta_slow", rope.beta_slow);
  }
  const bool yarn = rope.scaling == RopeScaling::kYarn;
  const double attention = rope.attention_factor / (yarn ? YarnAttentionFactor(rope.factor) : 1.0);
  if (attention != 1.0) keys.Float("rope.scaling.attn_factor", attention);
}

}  // namespace quire::engine
