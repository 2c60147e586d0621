#pragma once

// Block-quantised weights back to float32, exactly as ggml defines each format. The slow, readable
// statement of what every format means: the oracle of the fast kernels, and what inspection tools
// use.

#include <span>

#include "absl/status/status.h"

#include "kernels/weight_view.h"

namespace quire::kernels {

// InvalidArgument unless rows and cols are positive, cols is a whole number of blocks and the bytes
// are as many as that takes.
absl::Status ValidateWeight(const WeightView& weight);

// Writes rows [first_row, first_row + num_rows) of `weight` to `out` (num_rows * cols floats).
// InvalidArgument when cols is no whole number of blocks, the bytes do not match, or a range is
// off.
absl::Status Dequantize(const WeightView& weight, int64_t first_row, int64_t num_rows,
                        std::span<float> out);

}  // namespace quire::kernels
