#pragma once

// Normalises over the last dimension: either the input, or the sum of the input and a residual.
//   RMSNorm:    out = input / sqrt(mean(input^2) + eps) * weight            (arXiv:1910.07467)
//   LayerNorm:  out = (input - mean) / sqrt(var + eps) * weight + bias      (arXiv:1607.06450)
//
// Numeric: sums are in float32, in an order fixed by the row length alone. So the bits of a row do
//          not depend on other rows.

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

enum class NormKind { kRmsNorm, kLayerNorm };

struct NormArgs {
  TensorView out;     // [num_tokens, hidden_size]  activation dtype, written; may be `input`
  TensorView input;   // shape and dtype of out
  TensorView weight;  // [hidden_size]  f32
  TensorView bias;    // [hidden_size]  f32; empty: none
  // Has the shape and dtype of input. If `residual` is not empty, the op adds the input to it in
  // place, rounds the sum to the dtype, and normalises the rounded sum.
  TensorView residual;
  NormKind kind = NormKind::kRmsNorm;
  float eps = 1e-5f;
};
absl::Status Validate(const NormArgs& args);

}  // namespace quire::kernels
