#pragma once

// Reads the rotary positions of config.json, in the spellings of transformers 4 and 5.

#include "absl/status/status.h"

#include "engine/model/hf_fields.h"
#include "engine/model/model_config.h"

namespace quire::engine {

// The rotary fields that the caller has read outside the object of rotary parameters.
struct RopeOutside {
  bool partial_rotary = false;   // false: a partial_rotary_factor other than 1 is refused
  int64_t longrope_context = 0;  // the trained context of longrope; 0: longrope is refused
  // true: short_mscale, if present, is longrope's factor of cosines and sines, and long_mscale must
  // equal it; false: both are refused
  bool longrope_mscale = false;
};
// Reads one object: rope_scaling of transformers 4, or rope_parameters of transformers 5, which
// also holds theta. config.max_position_embeddings must have been read before.
absl::Status ReadRopeParameters(const HfFields& fields, const ModelConfig& config, RopeConfig& rope,
                                const RopeOutside& outside = {});

}  // namespace quire::engine
