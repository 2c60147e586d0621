#pragma once

// Computes by how much queries grow with their position, once at load.

#include <cstdint>
#include <vector>

#include "engine/model/model_config.h"

namespace quire::engine {

// Returns the factors of the queries at positions 0 to num_positions - 1. Values are computed in
// float64 and rounded once. growth.interval must not be 0.
std::vector<float> MakeQueryScales(const QueryGrowth& growth, int64_t num_positions);

}  // namespace quire::engine
