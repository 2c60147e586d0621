#pragma once

// min_p (arXiv:2407.01082): a cut relative to the probability of the likeliest id.

#include "kernels/sampling/kept_set.h"

namespace quire::kernels::sampling {

// Keeps the ids whose probability is at least min_p times the largest probability in `kept`:
// logit >= max + temperature * log(min_p), in float64. Tied ids stay together. Does nothing if
// min_p is 0.
void ApplyMinP(float min_p, KeptSet& kept);

}  // namespace quire::kernels::sampling
