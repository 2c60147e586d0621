#pragma once

// Converts float32 weights to the storage types that quire-convert writes: the inverse of
// kernels/quant/dequantize.h. Thread-safe and deterministic: every compiler gives the same bytes,
// and a row's bytes depend only on that row.
//
// A block's codes follow from its scale (and minimum). A search finds the scale with the least
// squared error, which is that of the product with uncorrelated inputs of equal size. Weights that
// came from a block of Q4_0 or Q5_0 are reproduced exactly.

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/quant/weight_view.h"

namespace quire::kernels {

// True for F32, F16, BF16, Q8_0, Q5_0, Q4_0, Q4_K and Q6_K.
bool CanQuantize(WeightType type);

// Writes rows of `cols` weights each to `out`, in blocks as DecodeBlock reads them. F16 and BF16
// round to nearest even; Q8_0 has llama.cpp's bits unless its scale is below f16's normal numbers.
// InvalidArgument when the type cannot be written, when rows or out are not whole rows of whole
// blocks, or when a weight is not finite or exceeds the type's range (for a block: the largest f16
// times the largest code). `out` may then be partly written.
absl::Status Quantize(WeightType type, std::span<const float> rows, int64_t cols,
                      std::span<std::byte> out);

}  // namespace quire::kernels
