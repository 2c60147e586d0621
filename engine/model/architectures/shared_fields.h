#pragma once

// Readers of config.json fields that several architectures share.

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/model/hf_fields.h"
#include "engine/model/model_draft.h"

namespace quire::engine {

// Sets head_dim to hidden_size / num_attention_heads, which must be whole. `heads_key` and
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

// Assigns `pattern` to the layers whose entry in layer_types is "sliding_attention", or
// "chunked_attention" if `pattern` is a chunk. The other layers must have the entry
// "full_attention". If config.json has no layer_types, assigns `pattern` to the layers for which
// has_pattern(layer) is true. num_hidden_layers must have been read before.
absl::Status ReadLayerPatterns(const HfFields& fields, const kernels::AttentionPattern& pattern,
                               const std::function<bool(int64_t)>& has_pattern, ModelDraft& draft);

// Element i of the result is true if layer i rotates queries and keys. The values come from
// no_rope_layers or, if that list is absent, from no_rope_layer_interval. If `empty_is_none`, an
// empty list counts as absent. num_hidden_layers must have been read before. If num_hidden_layers
// is out of range, the result is empty, and Complete() later returns the error.
absl::StatusOr<std::vector<bool>> ReadRotatingLayers(const HfFields& fields, bool empty_is_none,
                                                     const ModelDraft& draft);
// The default of no_rope_layer_interval: every fourth layer does not rotate.
inline constexpr int64_t kNoRopeInterval = 4;

// Reads the text model of a class that reads images, too. Calls `read` with the fields of
// text_config, the object inside config.json that describes the text model. tie_word_embeddings is
// read from config.json itself, as in transformers; if absent there, its value is `tied`.
absl::Status ReadTextOfImageModel(const HfFields& fields, bool tied,
                                  const std::function<absl::Status(const HfFields&)>& read,
                                  ModelDraft& draft);

}  // namespace quire::engine
