#pragma once

// Rotary angles of every position, scaling included, computed once at load.

#include <cstdint>
#include <vector>

#include "engine/model/model_config.h"

namespace quire::engine {

// [num_positions, rope_dim / 2, 2]: cos, sin of position * frequency(i), times the attention
// factor, computed in float64, rounded once. RoFormer, arXiv:2104.09864; RopeScaling names the
// papers of the scalings.
std::vector<float> MakeRopeTable(const RopeConfig& rope, int64_t num_positions);

// The frequency of each pair of dimensions, in radians per token, for contexts of num_positions;
// [rope_dim / 2].
std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t num_positions);

}  // namespace quire::engine
