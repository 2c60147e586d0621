#pragma once

// Writes a ModelConfig as the metadata of a GGUF file.

#include <string>

#include "absl/status/status.h"

#include "engine/model/model_config.h"
#include "files/gguf_values.h"

namespace quire::convert {

// Adds general.architecture and the keys of the architecture to `values`. Returns Unimplemented for
// an architecture that Quire cannot write as GGUF. A property for which GGUF has no key is left
// out. CheckSameModel finds such a property when the keys are read back.
absl::Status ConfigToGguf(const engine::ModelConfig& config, files::GgufValues& values);

// Returns `config` with the rotary scaling "llama3" expressed as frequency divisors, which a GGUF
// file holds in rope_freqs.weight. A config without that scaling is returned unchanged.
engine::ModelConfig WithRopeDivisors(engine::ModelConfig config);

// Checks that `gguf`, read from the metadata and tensors of the new file, describes the same model
// as `config`. Returns an InvalidArgument error that names the first field that differs. Ignores
// rounding to float32. Also ignores RopeConfig::layout, norm_weight_offset and unit_head_rows,
// because the converter rewrites the weights that these fields describe.
absl::Status CheckSameModel(const engine::ModelConfig& config, const engine::ModelConfig& gguf);

}  // namespace quire::convert
