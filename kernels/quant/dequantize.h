#pragma once

// Converts weights to float32. For the ggml formats, exactly as ggml defines each. This code is
// slow but readable. Conversion, inspection and the loading of weights use it. The tests of the
// fast kernels take its results as the correct ones.

#include <span>

#include "absl/status/status.h"

#include "kernels/quant/weight_view.h"

namespace quire::kernels {

// Returns InvalidArgument unless rows and cols are positive, each row is a whole number of blocks,
// and the number of bytes matches.
absl::Status ValidateWeight(const WeightView& weight);

// Writes rows [first_row, first_row + num_rows) of `weight` to `out`. Returns InvalidArgument if
// ValidateWeight refuses `weight`, if the rows are out of range, or if the size of `out` is not
// exactly that of these rows.
absl::Status Dequantize(const WeightView& weight, int64_t first_row, int64_t num_rows,
                        std::span<float> out);

}  // namespace quire::kernels
