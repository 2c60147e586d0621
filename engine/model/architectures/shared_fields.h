#pragma once

// What the config.json of several architectures says in the same way.

#include "absl/status/status.h"

#include "engine/model/hf_fields.h"
#include "engine/model/model_config.h"

namespace quire::engine {

// head_dim of models whose heads divide hidden_size evenly; the keys are for the error.
absl::Status ReadEvenHeadDim(const HfFields& fields, const char* heads_key, const char* width_key,
                             ModelConfig& config);

// theta of rotary positions that are not scaled, from `theta_key` of transformers 4 or
// rope_parameters of 5.
absl::Status ReadUnscaledTheta(const HfFields& fields, const char* theta_key, ModelConfig& config);

}  // namespace quire::engine
