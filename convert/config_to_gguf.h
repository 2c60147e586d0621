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

// True if YaRN of `rope` is the one that llama.cpp computes whatever a file says: beta_fast 32,
// beta_slow 1, and the ends of the blend rounded to whole dimensions.
bool HasUsualYarn(const engine::RopeConfig& rope);

// Returns `config` with a rotary scaling that GGUF's keys or llama.cpp cannot express as frequency
// divisors, which a GGUF file holds in rope_freqs.weight: "llama3", and in a file of the llama
// architecture YaRN that is not HasUsualYarn. Another config is returned unchanged.
engine::ModelConfig WithRopeDivisors(engine::ModelConfig config);

// Checks that `gguf`, read from the metadata and tensors of the new file, describes the same model
// as `config`. Returns an InvalidArgument error that names the first field that differs. Ignores
// rounding to float32. Also ignores RopeConfig::layout, norm_weight_offset and unit_head_rows,
// because the converter rewrites the weights that these fields describe.
absl::Status CheckSameModel(const engine::ModelConfig& config, const engine::ModelConfig& gguf);

}  // namespace quire::convert
