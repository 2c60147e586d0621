#pragma once

// Reads and writes the rotary positions of a GGUF file: the keys rope.*, and the tensor
// rope_freqs.weight.

#include "absl/status/status.h"

#include "engine/model/gguf_fields.h"
#include "engine/model/gguf_keys.h"
#include "engine/model/model_draft.h"

namespace quire::engine {

// Fills draft.ropes[0] except the layout. The sizes in `draft` must have been read before.
// Returns InvalidArgument for an unsupported scaling.
absl::Status ReadGgufRope(GgufFields& fields, ModelDraft& draft);

// Writes the keys that ReadGgufRope reads. The caller must write frequency_divisors to the tensor
// rope_freqs.weight. Writes nothing for models without rotary positions. Leaves out a scaling that
// llama.cpp does not have.
void WriteGgufRope(const ModelConfig& config, GgufKeys& keys);

}  // namespace quire::engine
