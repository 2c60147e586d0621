#include "engine/model/architectures/shared_fields.h"

#include <optional>
#include <string>

#include "base/status_macros.h"

namespace quire::engine {

absl::Status ReadEvenHeadDim(const HfFields& fields, const char* heads_key, const char* width_key,
                             ModelConfig& config) {
  const int64_t heads = config.num_attention_heads;
  if (heads <= 0 || config.hidden_size % heads != 0) {
    return fields.Wrong(heads_key, std::string("a divisor of ") + width_key);
  }
  config.head_dim = config.hidden_size / heads;
  return absl::OkStatus();
}

absl::Status ReadUnscaledTheta(const HfFields& fields, const char* theta_key, ModelConfig& config) {
  double& theta = config.rope.theta;
  RETURN_IF_ERROR(fields.Float(theta_key, 10000.0, theta));
  RETURN_IF_ERROR(fields.WantNull({"rope_scaling"}));
  ASSIGN_OR_RETURN(const std::optional<HfFields> rope, fields.Object("rope_parameters"));
  if (!rope) return absl::OkStatus();
  std::string type;
  RETURN_IF_ERROR(rope->String("rope_type", "default", type));
  if (type != "default") return rope->Wrong("rope_type", "default");
  return rope->Float("rope_theta", theta, theta);
}

}  // namespace quire::engine
