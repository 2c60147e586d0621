#pragma once

// The two cuts by rank: top_k by count, top_p (nucleus sampling, arXiv:1904.09751) by mass.

#include <cstdint>

#include "engine/sampling/kept_set.h"

namespace quire::engine {

// Keeps the k likeliest; of ids tied at the cut the lower ones (HF transformers and vLLM keep all
// of these). 0 or at least the number kept: no change.
void ApplyTopK(int32_t top_k, KeptSet& kept);

// Keeps the fewest likeliest ids whose probabilities, among what is kept so far, reach top_p: an id
// stays when those likelier than it have less than top_p together. As HF transformers and vLLM;
// ties at the cut by lower id. 1: no change.
void ApplyTopP(float top_p, KeptSet& kept);

}  // namespace quire::engine
