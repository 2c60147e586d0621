#pragma once

// A file's matrix rewritten in another form, in memory of its own.

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/quant/weight_view.h"

namespace quire::engine {

// The [cols, rows] transpose of a [rows, cols] matrix. InvalidArgument for a type in blocks.
absl::StatusOr<std::vector<std::byte>> Transposed(const kernels::WeightView& matrix);

// Each row divided by its length, in float32, rounded to the matrix's type. InvalidArgument for a
// type in blocks.
absl::StatusOr<std::vector<std::byte>> WithUnitRows(const kernels::WeightView& matrix);

}  // namespace quire::engine
