#pragma once

// Joins a matrix of e4m3 with its scales, which are another tensor of the file.
//
// The scales of NAME.weight are the tensor NAME.weight_scale, as compressed-tensors and ModelOpt
// write it, or NAME.weight_scale_inv, as DeepSeek and Qwen do. A weight is the number of its code
// times its scale; that of weight_scale_inv too, in spite of its name. The shape of the scales says
// to which weights of a [rows, cols] matrix each of them belongs:
//   [] or [1]                                 all
//   [rows] or [rows, 1]                       a row
//   [ceil(rows / 128), ceil(cols / 128)]      a block of 128 x 128

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "files/weight_map.h"

namespace quire::engine {

// Returns the name of the tensor that has the scales of the e4m3 matrix `name`, of shape
// [rows, cols]. Returns InvalidArgument, naming the tensor, if there is none, if there are two, if
// the shape is none of the above, or if a scale is not positive or larger than kLargestE4M3Scale.
// Returns it too if the rows are no whole number of blocks of kF8E4M3Scaled.
absl::StatusOr<std::string> CheckScales(std::string_view name, int64_t rows, int64_t cols,
                                        const files::WeightMap& weights);

// Returns the matrix as kF8E4M3Scaled. The matrix must have the type kF8E4M3. Returns
// InvalidArgument for the reasons of CheckScales, and if a code is NaN.
absl::StatusOr<std::vector<std::byte>> WithScales(std::string_view name, int64_t rows, int64_t cols,
                                                  const files::WeightMap& weights);

}  // namespace quire::engine
