#pragma once

// min_p (arXiv:2407.01082): a cut relative to the probability of the likeliest id.

#include "engine/sampling/kept_set.h"

namespace quire::engine {

// Keeps the ids with probability of at least min_p times that of the likeliest one kept:
// logit >= max + temperature * log(min_p), in float64. Ties stay together. 0: no change.
void ApplyMinP(float min_p, KeptSet& kept);

}  // namespace quire::engine
