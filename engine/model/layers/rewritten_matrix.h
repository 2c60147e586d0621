#pragma once

// Rewrites a matrix of a file in another form, in new memory.

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/quant/weight_view.h"

namespace quire::engine {

// Returns the [cols, rows] transpose of a [rows, cols] matrix. Returns InvalidArgument for a type
// that is stored in blocks.
absl::StatusOr<std::vector<std::byte>> Transposed(const kernels::WeightView& matrix);

// Returns the matrix with each row divided by its length. Values are rounded to float32, then to
// the type of the matrix. Returns InvalidArgument for a type that is stored in blocks.
absl::StatusOr<std::vector<std::byte>> WithUnitRows(const kernels::WeightView& matrix);

}  // namespace quire::engine
