#pragma once

// Normalises each row of the input or, with a residual, each row of input + residual.
//   RMSNorm:    out = input / sqrt(mean(input^2) + eps) * weight            (arXiv:1910.07467)
//   LayerNorm:  out = (input - mean) / sqrt(var + eps) * weight + bias      (arXiv:1607.06450)
//
// Numeric: sums are in float32. Only the row length determines their order, so the bits of a row
//          do not depend on other rows.

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

enum class NormKind { kRmsNorm, kLayerNorm };

struct NormArgs {
  TensorView out;     // [num_tokens, hidden_size]  activation dtype, written; may be `input`
  TensorView input;   // shape and dtype of out
  TensorView weight;  // [hidden_size]  f32
  TensorView bias;    // [hidden_size]  f32; empty: none
  // Has the shape and dtype of `input`, or is empty. If it is not empty, the op adds `input` to
  // `residual` in place, rounds the sum to the dtype, and normalises the rounded sum.
  TensorView residual;
  NormKind kind = NormKind::kRmsNorm;
  float eps = 1e-5f;
};
absl::Status Validate(const NormArgs& args);

}  // namespace quire::kernels
