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

// Sets the patterns of the layers by layer_types: a layer of "full_attention" sees all tokens, and
// a layer of "sliding_attention" or, if `pattern` has chunks, of "chunked_attention" has `pattern`.
// If config.json has no layer_types, the layers for which `has_pattern(layer)` is true have it.
// num_hidden_layers must have been read before.
absl::Status ReadLayerPatterns(const HfFields& fields, const kernels::AttentionPattern& pattern,
                               const std::function<bool(int64_t)>& has_pattern, ModelDraft& draft);

// Returns for each layer whether it rotates queries and keys, from no_rope_layers or from
// no_rope_layer_interval. An empty list counts as no list if `empty_is_none`. num_hidden_layers
// must have been read before; if it is out of range, which Complete() reports, the result is empty.
absl::StatusOr<std::vector<bool>> ReadRotatingLayers(const HfFields& fields, bool empty_is_none,
                                                     const ModelDraft& draft);
// The default of no_rope_layer_interval: every fourth layer does not rotate.
inline constexpr int64_t kNoRopeInterval = 4;

// Reads the text model of a class that reads images, too. The fields of the text model are in
// text_config, an object inside config.json, from which `read` reads. transformers reads
// tie_word_embeddings from the outer object, where it is `tied` by default.
absl::Status ReadTextOfImageModel(const HfFields& fields, bool tied,
                                  const std::function<absl::Status(const HfFields&)>& read,
                                  ModelDraft& draft);

}  // namespace quire::engine
