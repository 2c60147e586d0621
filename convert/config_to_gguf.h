#pragma once

// Writes a ModelConfig as the metadata of a GGUF file.

#include <string>

#include "absl/status/status.h"

#include "engine/model/model_config.h"
#include "files/gguf_values.h"

namespace quire::convert {

// Adds general.architecture and the architecture's keys. Unimplemented for an architecture that has
// no GGUF form here. Properties without a key are left out; CheckSameModel finds them when the keys
// are read back.
absl::Status ConfigToGguf(const engine::ModelConfig& config, files::GgufValues& values);

// llama3's stretched frequencies as the divisors that a GGUF file holds, in rope_freqs.weight;
// other configs are returned unchanged.
engine::ModelConfig WithRopeDivisors(engine::ModelConfig config);

// Checks that `gguf`, read from the metadata and tensors of the new file, is the same model as
// `config`. InvalidArgument names the first field that differs. The form of the weights (rotary
// rows, offsets of norms, a head of unit rows), which conversion rewrites, does not count, nor does
// rounding to float32.
absl::Status CheckSameModel(const engine::ModelConfig& config, const engine::ModelConfig& gguf);

}  // namespace quire::convert
