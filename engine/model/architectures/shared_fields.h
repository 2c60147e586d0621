#pragma once

// What the config.json of several architectures says in the same way.

#include <cstdint>
#include <functional>
#include <string_view>

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

// The activation of a feed-forward network without a gate: GELU, exact or by tanh, by its name in
// transformers.
absl::Status ReadGelu(const HfFields& fields, const char* key, std::string_view fallback,
                      ModelConfig& config);

// layer_windows by layer_types ("sliding_attention" has `window`, "full_attention" sees all), or
// where config.json has none by `slides`, called with each layer. `window` 0: none has one.
// num_hidden_layers has been read.
absl::Status ReadLayerWindows(const HfFields& fields, int64_t window,
                              const std::function<bool(int64_t)>& slides, ModelConfig& config);

}  // namespace quire::engine
