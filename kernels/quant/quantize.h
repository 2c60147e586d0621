#pragma once

// Converts float32 weights to the storage types that quire-convert writes. This is the inverse of
// kernels/quant/dequantize.h. The conversion is thread-safe and deterministic. Every compiler gives
// the same bytes, and a row's bytes depend only on that row.
//
// The codes of a block follow from its scale (and minimum). A search finds the scale with the least
// squared error of the weights. If inputs are uncorrelated and of equal size, that scale also gives
// the least squared error of the product. Weights that came from a block of Q4_0 or Q5_0 are
// reproduced exactly.

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/quant/weight_view.h"

namespace quire::kernels {

// Returns true for F32, F16, BF16, Q8_0, Q5_0, Q4_0, Q4_K and Q6_K.
bool CanQuantize(WeightType type);

// Quantises `rows`, each of `cols` weights, and writes them to `out` in the blocks that DecodeBlock
// reads. F16 and BF16 round to nearest even. Q8_0 gives the same bits as llama.cpp, unless the
// scale of a block is below the normal numbers of f16.
//
// Returns InvalidArgument if Quantize cannot write the type, if `rows` or `out` does not consist of
// whole rows of whole blocks, or if a weight is not finite or exceeds the range of the type. The
// range of a block type is the largest f16 times the largest codes of the type. After an error
// `out` may be partly written.
absl::Status Quantize(WeightType type, std::span<const float> rows, int64_t cols,
                      std::span<std::byte> out);

}  // namespace quire::kernels
