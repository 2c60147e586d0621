#pragma once

// The float32 rows of a planned tensor, from wherever they are in the model's files.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/convert/tensor_plan.h"
#include "engine/weights/weight_map.h"
#include "kernels/weight_view.h"

namespace quire::engine {

// NotFound or InvalidArgument names a source that is missing, has another shape, or a type that no
// kernel reads.
absl::Status CheckSources(const PlannedTensor& tensor, const WeightMap& weights);

// Borrows the plan and the weights. Read is thread-safe.
class RowReader {
 public:
  // Errors as CheckSources. Matrices that are to be rewritten whole are in memory while this lives.
  static absl::StatusOr<RowReader> Create(const PlannedTensor& tensor, const WeightMap& weights);

  // A vector is one row.
  int64_t num_rows() const { return num_rows_; }
  int64_t cols() const { return cols_; }

  // Rows [begin, begin + count) to `out` (count * cols() floats).
  absl::Status Read(int64_t begin, int64_t count, std::span<float> out) const;
  // The files' pages of these rows are not needed any more.
  void Drop(const WeightMap& weights) const;

 private:
  struct Run {
    kernels::WeightView view;
    int64_t begin = 0, count = 0;  // rows of it
  };

  int64_t num_rows_ = 0, cols_ = 0;
  float offset_ = 0.0f;
  std::vector<Run> runs_;                                 // in order
  std::vector<float> vector_;                             // instead, of a vector
  std::map<std::string, std::vector<std::byte>> memory_;  // of rewritten matrices
};

}  // namespace quire::engine
