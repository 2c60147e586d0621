#pragma once

// Quantises to K-quants. A K-quant has two levels: a block has a scale of scales, and the scales of
// its sub-blocks are themselves codes.

#include "kernels/quant/weight_blocks.h"

namespace quire::kernels::quantize_internal {

// Quantise 256 weights into eight sub-blocks of 32. Quantize has checked the magnitudes of the
// weights.
void QuantizeQ4K(const float* x, DecodedBlock* out);
void QuantizeQ6K(const float* x, DecodedBlock* out);

}  // namespace quire::kernels::quantize_internal
