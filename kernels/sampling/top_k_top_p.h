#pragma once

// The two cuts by rank: top_k by count, top_p (nucleus sampling, arXiv:1904.09751) by mass.

#include <cstdint>

#include "kernels/sampling/kept_set.h"

namespace quire::kernels::sampling {

// Keeps the top_k likeliest ids. Among ids tied at the cut, the lower ones stay, whereas HF
// transformers and vLLM keep all of them. Does nothing if top_k is 0 or at least the number of ids
// kept so far.
void ApplyTopK(int32_t top_k, KeptSet& kept);

// Keeps the fewest ids, the likeliest first, whose probabilities add up to at least top_p.
// Probabilities are normalised over the ids kept so far. So an id stays if all likelier ids
// together have less than top_p, as in HF transformers and vLLM. Among ids tied at the cut, the
// lower ones stay. Does nothing if top_p is 1.
void ApplyTopP(float top_p, KeptSet& kept);

}  // namespace quire::kernels::sampling
