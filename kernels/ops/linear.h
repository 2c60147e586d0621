#pragma once

// Matrix product with its epilogue.
//   y = input . weight^T (+ bias)
//   out = activation(y) (+ residual)
//
// Numeric: one row of `out` depends only on one row of `input` and on the weight: the order of sums
//          is fixed by (weight type, cols), never by num_tokens, threads or layout. Against
//          block-quantised weights the input is quantised per row and block (kernels/cpu documents
//          it).
// Cost:    decode is bound by reading the weight once, prefill by its 2 * num_tokens * rows * cols
//          FLOPs.
// Errors:  InvalidArgument before anything is computed.

#include "absl/status/status.h"

#include "kernels/activation.h"
#include "kernels/prepared_weight.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

struct LinearArgs {
  TensorView out;    // [num_tokens, rows], gated [num_tokens, rows / 2]; written
  TensorView input;  // [num_tokens, cols]
  const PreparedWeight* weight = nullptr;  // [rows, cols]
  TensorView bias;                         // [rows]  f32; empty without one
  TensorView residual;  // shape of out, added last; may be `out`; empty without one
  Activation activation = Activation::kNone;
};
absl::Status Validate(const LinearArgs& args);

}  // namespace quire::kernels
