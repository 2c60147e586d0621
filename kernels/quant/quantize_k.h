#pragma once

// Quantises to K-quants. A K-quant has two levels: the scales of sub-blocks are codes, and the
// block has a scale for these codes.

#include "kernels/quant/weight_blocks.h"

namespace quire::kernels::quantize_internal {

// Quantise 256 weights into eight sub-blocks of 32. Quantize has checked the magnitudes of the
// weights.
void QuantizeQ4K(const float* x, DecodedBlock* out);
void QuantizeQ6K(const float* x, DecodedBlock* out);

}  // namespace quire::kernels::quantize_internal
