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

// Writes rows [first_row, first_row + num_rows) of `weight` to `out`. InvalidArgument when
// ValidateWeight refuses `weight`, when the rows are out of range, or when `out` does not have
// num_rows * cols floats.
absl::Status Dequantize(const WeightView& weight, int64_t first_row, int64_t num_rows,
                        std::span<float> out);

}  // namespace quire::kernels
