#pragma once

// Rotary angles of every position, scaling included, made once at load.

#include <cstdint>
#include <vector>

#include "engine/model/model_config.h"

namespace quire::engine {

// [num_positions, rope_dim / 2, 2]: cos, sin of position * frequency(i), computed in float64,
// rounded once. RoFormer, arXiv:2104.09864; kLinear: Position Interpolation, 2306.15595; kLlama3:
// the frequency-dependent scaling of Llama 3.1, 2407.21783.
std::vector<float> MakeRopeTable(const RopeConfig& rope, int64_t num_positions);

// The frequency of each pair of dimensions, in radians per token; [rope_dim / 2].
std::vector<double> RopeFrequencies(const RopeConfig& rope);

}  // namespace quire::engine
