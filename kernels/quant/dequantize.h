#pragma once

// Converts block-quantised weights to float32, exactly as ggml defines each format. This slow,
// readable definition of every format is the oracle of the fast kernels; inspection tools use it.

#include <span>

#include "absl/status/status.h"

#include "kernels/quant/weight_view.h"

namespace quire::kernels {

// InvalidArgument unless rows and cols are positive, cols is a whole number of blocks and the
// number of bytes matches.
absl::Status ValidateWeight(const WeightView& weight);

// Writes rows [first_row, first_row + num_rows) of `weight` to `out` (num_rows * cols floats).
// InvalidArgument when cols is not a whole number of blocks, the number of bytes does not match, or
// a range is outside.
absl::Status Dequantize(const WeightView& weight, int64_t first_row, int64_t num_rows,
                        std::span<float> out);

}  // namespace quire::kernels
