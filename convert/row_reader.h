#pragma once

// Reads the rows of a planned tensor from the model's files, as float32.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "convert/tensor_plan.h"
#include "engine/model/layers/rewritten_matrix.h"
#include "files/weight_map.h"
#include "kernels/quant/weight_view.h"

namespace quire::convert {

// Checks that the weights have all sources of `tensor`. Returns a NotFound error that names a
// source that is missing. Returns an InvalidArgument error that names a source with another shape,
// or with a type that no kernel reads.
absl::Status CheckSources(const PlannedTensor& tensor, const files::WeightMap& weights);

// Reads the rows of one tensor. The weights must outlive the reader. Read is thread-safe.
class RowReader {
 public:
  // Returns a reader of `tensor`. Errors are the same as in CheckSources. If a matrix must be
  // rewritten as a whole, the reader keeps the rewritten matrix in memory.
  static absl::StatusOr<RowReader> Create(const PlannedTensor& tensor,
                                          const files::WeightMap& weights);

  // Returns the number of rows of the tensor; 1 for a vector.
  int64_t num_rows() const { return num_rows_; }
  int64_t cols() const { return cols_; }

  // Reads rows [begin, begin + count) into `out` (count * cols() floats).
  absl::Status Read(int64_t begin, int64_t count, std::span<float> out) const;
  // Drops the file pages of the source matrices, which are no longer needed.
  void Drop(const files::WeightMap& weights) const;

 private:
  struct Run {
    kernels::WeightView view;
    int64_t begin = 0, count = 0;  // rows of `view`
  };

  int64_t num_rows_ = 0, cols_ = 0;
  std::vector<Run> runs_;                                 // in the order of the rows
  std::vector<float> vector_;                             // values of a vector, which has no runs
  std::map<std::string, engine::LoadedMatrix> matrices_;  // by name
};

}  // namespace quire::convert
