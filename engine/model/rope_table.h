#pragma once

// Computes the rotary angles of every position, scaling included, once at load.

#include <cstdint>
#include <vector>

#include "engine/model/model_config.h"

namespace quire::engine {

// Returns a table [num_positions, rope_dim / 2, 2]: the cosine and the sine of position *
// frequency(i), times the attention factor. Values are computed in float64 and rounded once. See
// RoFormer, arXiv:2104.09864. RopeScaling names the papers of the scalings.
std::vector<float> MakeRopeTable(const RopeConfig& rope, int64_t num_positions);

// Returns the frequency of each pair of dimensions, in radians per token, for contexts of
// num_positions. The size is rope_dim / 2.
std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t num_positions);

}  // namespace quire::engine
