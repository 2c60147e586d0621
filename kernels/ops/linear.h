#pragma once

// Computes a matrix product and its epilogue.
//   y = input . weight^T (+ bias)
//   out = activation(y) (+ residual)
//   With soft_cap c > 0, out = c * tanh(activation(y) / c) (+ residual).
//
// Numeric: a row of `out` depends only on the weight, the bias and the same row of `input` and
//          `residual`. On the CPU the order of sums is fixed by the type and the cols of the
//          weight, and does not depend on num_tokens, threads or layout. On a GPU, cuBLASLt chooses
//          the order for the shape of the product, which includes num_tokens. For block-quantised
//          weights, the CPU quantises each row of the input block by block (kernels/cpu documents
//          how). A GPU rounds each weight once to the dtype of the input.
// Cost:    decode is bound by reading the weight once. Prefill is bound by
//          2 * num_tokens * rows * cols FLOPs.
// Errors:  InvalidArgument before anything is computed.

#include "absl/status/status.h"

#include "kernels/activation.h"
#include "kernels/prepared_weight.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

struct LinearArgs {
  TensorView out;    // [num_tokens, rows], or [num_tokens, rows / 2] if gated; written
  TensorView input;  // [num_tokens, cols]
  const PreparedWeight* weight = nullptr;  // [rows, cols]
  TensorView bias;                         // [rows]  f32; empty: none
  TensorView residual;                     // shape of out, added last; may be `out`; empty: none
  Activation activation = Activation::kNone;
  float activation_limit = 0.0f;  // more than 0 for kClampedSiluMul; others do not read it
  float soft_cap = 0.0f;          // 0: no cap
};
absl::Status Validate(const LinearArgs& args);

}  // namespace quire::kernels
