#pragma once

// Readers of config.json fields that several architectures share.

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"

#include "engine/model/hf_fields.h"
#include "engine/model/model_draft.h"

namespace quire::engine {

// Sets head_dim to hidden_size / num_attention_heads. The division must be even. `heads_key` and
// `width_key` name the two fields in the error.
absl::Status ReadEvenHeadDim(const HfFields& fields, const char* heads_key, const char* width_key,
                             ModelDraft& draft);

// Reads theta of unscaled rotary positions, from `theta_key` of transformers 4 or from
// rope_parameters of transformers 5.
absl::Status ReadUnscaledTheta(const HfFields& fields, const char* theta_key, ModelDraft& draft);

// Reads the activation of a feed-forward network without a gate. The value of `key` is the name of
// the activation in transformers. The activation must be exact GELU or its tanh approximation.
absl::Status ReadGelu(const HfFields& fields, const char* key, std::string_view fallback,
                      ModelDraft& draft);

// Sets the windows of the layers by layer_types: a layer of "sliding_attention" has `window`, and a
// layer of "full_attention" sees all tokens. If config.json has no layer_types, `slides(layer)`
// decides. If `window` is 0, no layer has a window. num_hidden_layers must have been read before.
absl::Status ReadLayerWindows(const HfFields& fields, int64_t window,
                              const std::function<bool(int64_t)>& slides, ModelDraft& draft);

}  // namespace quire::engine
