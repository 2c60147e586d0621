#pragma once

// Rows to blocks on several threads, a batch at a time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "engine/convert/row_reader.h"
#include "kernels/weight_view.h"

namespace quire::engine {

// Adds up the error that it makes, in what kernels::Dequantize reads back. One caller at a time.
class BatchQuantizer {
 public:
  explicit BatchQuantizer(int num_threads);

  // Rows that one batch holds, each thread some megabytes of them in float32.
  int64_t RowsOfBatch(int64_t cols) const;
  // Rows [begin, begin + count) into `out`. Errors as kernels::Quantize.
  absl::Status Run(const RowReader& rows, kernels::WeightType type, int64_t begin, int64_t count,
                   std::vector<std::byte>& out);

  // The root of all squared errors over all squares.
  double relative_error() const;

 private:
  // What one thread works in.
  struct Share {
    std::vector<float> rows, read_back;
    double squared_error = 0.0, squares = 0.0;
    absl::Status status;
  };
  static absl::Status RunShare(const RowReader& rows, kernels::WeightType type, int64_t begin,
                               int64_t count, std::span<std::byte> out, Share& share);

  std::vector<Share> shares_;
  double squared_error_ = 0.0, squares_ = 0.0;
};

}  // namespace quire::engine
