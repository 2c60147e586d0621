#pragma once

// The two cuts by rank: top_k by count, top_p (nucleus sampling, arXiv:1904.09751) by mass.

#include <cstdint>

#include "engine/sampling/kept_set.h"

namespace quire::engine {

// Keeps the k likeliest; among ids tied at the cut the lower ones (HF transformers and vLLM keep
// all tied ones). No change if top_k is 0 or at least the number of ids kept so far.
void ApplyTopK(int32_t top_k, KeptSet& kept);

// Keeps the fewest likeliest ids whose probabilities, among the ids kept so far, reach top_p: an id
// stays when the likelier ones have less than top_p together. As in HF transformers and vLLM; ties
// at the cut by lower id. 1: no change.
void ApplyTopP(float top_p, KeptSet& kept);

}  // namespace quire::engine
