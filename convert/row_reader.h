#pragma once

// Reads the float32 rows of a planned tensor from the model's files.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "convert/tensor_plan.h"
#include "files/weight_map.h"
#include "kernels/quant/weight_view.h"

namespace quire::convert {

// NotFound or InvalidArgument names a source that is missing, has another shape, or a type that no
// kernel reads.
absl::Status CheckSources(const PlannedTensor& tensor, const files::WeightMap& weights);

// Borrows the plan and the weights. Read is thread-safe.
class RowReader {
 public:
  // Errors as CheckSources. Matrices that must be rewritten as a whole stay in memory while this
  // lives.
  static absl::StatusOr<RowReader> Create(const PlannedTensor& tensor,
                                          const files::WeightMap& weights);

  // A vector is one row.
  int64_t num_rows() const { return num_rows_; }
  int64_t cols() const { return cols_; }

  // Reads rows [begin, begin + count) into `out` (count * cols() floats).
  absl::Status Read(int64_t begin, int64_t count, std::span<float> out) const;
  // Drops the file pages of these rows, which are no longer needed.
  void Drop(const files::WeightMap& weights) const;

 private:
  struct Run {
    kernels::WeightView view;
    int64_t begin = 0, count = 0;  // rows of it
  };

  int64_t num_rows_ = 0, cols_ = 0;
  float offset_ = 0.0f;
  std::vector<Run> runs_;                                 // in order
  std::vector<float> vector_;                             // used instead for a vector
  std::map<std::string, std::vector<std::byte>> memory_;  // of rewritten matrices
};

}  // namespace quire::convert
