#pragma once

// Rotary positions in the metadata of a GGUF file: the keys rope.*, and the tensor
// rope_freqs.weight.

#include "absl/status/status.h"

#include "engine/model/gguf_fields.h"
#include "engine/model/gguf_keys.h"
#include "engine/model/model_config.h"

namespace quire::engine {

// Fills config.rope except its layout; sizes must have been read before. InvalidArgument for an
// unsupported scaling.
absl::Status ReadGgufRope(GgufFields& fields, ModelConfig& config);

// The inverse; rope_freqs.weight must hold frequency_divisors. Writes nothing for models without
// rotary positions, nor for a scaling that llama.cpp does not have.
void WriteGgufRope(const ModelConfig& config, GgufKeys& keys);

}  // namespace quire::engine
