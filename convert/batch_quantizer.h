#pragma once

// Quantises rows into blocks on several threads, one batch at a time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "convert/row_reader.h"
#include "kernels/quant/weight_view.h"

namespace quire::convert {

// Quantises rows and adds up the squares of the errors. The error of a weight is the difference
// between the weight and the value that kernels::Dequantize returns for it. Not thread-safe.
class BatchQuantizer {
 public:
  explicit BatchQuantizer(int num_threads);

  // Returns the number of rows for one batch: about 4 MiB of float32 for each thread.
  int64_t RowsOfBatch(int64_t cols) const;
  // Quantises rows [begin, begin + count) into `out`. Errors are the same as in kernels::Quantize.
  absl::Status Run(const RowReader& rows, kernels::WeightType type, int64_t begin, int64_t count,
                   std::vector<std::byte>& out);

  // Returns the square root of (the sum of squared errors / the sum of squared weights), over all
  // rows so far.
  double relative_error() const;

 private:
  // The work memory and results of one thread.
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

}  // namespace quire::convert
