#pragma once

// Greedy sampling: out[i] is the index of the largest element of row i. Among equal elements, the
// first one wins. NaN never wins.

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

struct ArgmaxArgs {
  TensorView out;     // [num_rows]  int32, written
  TensorView values;  // [num_rows, vocab_size]  f32
};
absl::Status Validate(const ArgmaxArgs& args);

}  // namespace quire::kernels
