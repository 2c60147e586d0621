#pragma once

// Rotary positions in the metadata of a GGUF file: the keys rope.*, and the tensor
// rope_freqs.weight.

#include "absl/status/status.h"

#include "engine/model/gguf_fields.h"
#include "engine/model/gguf_keys.h"
#include "engine/model/model_config.h"

namespace quire::engine {

// Into config.rope, but for its layout. Sizes have been read. InvalidArgument for a scaling that is
// not honoured.
absl::Status ReadGgufRope(GgufFields& fields, ModelConfig& config);

// Its inverse; rope_freqs.weight is to hold frequency_divisors. Nothing is written of positions
// that do not turn, nor of a scaling that llama.cpp does not have.
void WriteGgufRope(const ModelConfig& config, GgufKeys& keys);

}  // namespace quire::engine
