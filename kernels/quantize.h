#pragma once

// float32 weights to the storage types that quire-convert writes: the inverse of
// kernels/dequantize.h. Thread-safe and deterministic: the same bytes from every compiler, and a
// row's bytes depend on that row alone.
//
// A block's codes follow from its scale (and minimum), which is searched for the least squared
// error: that of the product with inputs that are uncorrelated and of one size. Weights that came
// from a block of Q4_0 or Q5_0 come back as they were.

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/weight_view.h"

namespace quire::kernels {

// F32, F16, BF16, Q8_0, Q5_0, Q4_0, Q4_K and Q6_K.
bool CanQuantize(WeightType type);

// Writes rows of `cols` weights each to `out`, in blocks as DecodeBlock reads them. F16 and BF16
// round to nearest even; Q8_0 is llama.cpp's to the bit, unless its scale is below f16's normal
// numbers.
// InvalidArgument when the type cannot be written, rows or out are not whole rows of whole blocks,
// or a weight is not finite or larger than the type holds (for a block: the largest f16 times the
// largest code; out is then written in part).
absl::Status Quantize(WeightType type, std::span<const float> rows, int64_t cols,
                      std::span<std::byte> out);

}  // namespace quire::kernels
