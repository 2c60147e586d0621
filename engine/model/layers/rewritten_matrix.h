#pragma once

// Finds a matrix in a file, and rewrites it in the form in which kernels take it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/model/decoder_tensors.h"
#include "files/weight_map.h"
#include "kernels/quant/weight_view.h"

namespace quire::engine {

// Returns the [cols, rows] transpose of a [rows, cols] matrix, or of each of several matrices of
// equal shape that are stacked by rows. With `in_turns`, the odd rows of a transpose, counted from
// 0, come after the even ones. Returns InvalidArgument for a type that is stored in blocks.
absl::StatusOr<std::vector<std::byte>> Transposed(const kernels::WeightView& matrices,
                                                  int64_t num_matrices = 1, bool in_turns = false);

// Returns the matrix with its odd rows, counted from 0, after the even ones.
std::vector<std::byte> EvenRowsFirst(const kernels::WeightView& matrix);

// Returns the place of row `row` among `rows` rows when the odd rows come after the even ones.
constexpr int64_t PlaceInTurns(int64_t row, int64_t rows) {
  return row % 2 == 0 ? row / 2 : (rows + 1) / 2 + row / 2;
}

// Returns the matrix of `part`, or its matrices stacked by rows, as they are in the file.
absl::StatusOr<kernels::WeightView> MatrixInFile(const NamedRows& part, int64_t cols,
                                                 const files::WeightMap& weights);

// A matrix in the form in which kernels take it.
struct LoadedMatrix {
  kernels::WeightView view;      // of `bytes`, or of the file if that has the form
  std::vector<std::byte> bytes;  // empty if `view` is one of the file
};
// Returns the rows of `part`, in the order in which kernels take them. Numbers of e4m3 are joined
// with their scales. Drops the pages of the file if the view is none of the file. Errors are those
// of MatrixInFile, WithScales and Transposed.
absl::StatusOr<LoadedMatrix> LoadMatrix(const NamedRows& part, int64_t cols,
                                        const files::WeightMap& weights);

// Returns the matrix with each row divided by its length. Values are rounded to float32, then to
// the type of the matrix. Returns InvalidArgument for a type that is stored in blocks.
absl::StatusOr<std::vector<std::byte>> WithUnitRows(const kernels::WeightView& matrix);

}  // namespace quire::engine
