#pragma once

// Normalisation over the last dimension, of the input or of its sum with a residual.
//   RMSNorm:    out = input / sqrt(mean(input^2) + eps) * weight            (arXiv:1910.07467)
//   LayerNorm:  out = (input - mean) / sqrt(var + eps) * weight + bias      (arXiv:1607.06450)
//
// Numeric: sums in float32 in an order fixed by the row length alone, so a row's bits do not depend
//          on other rows.

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

enum class NormKind { kRmsNorm, kLayerNorm };

struct NormArgs {
  TensorView out;     // [num_tokens, hidden_size]  activation dtype, written; may be `input`
  TensorView input;   // shape and dtype of out
  TensorView weight;  // [hidden_size]  f32
  TensorView bias;    // [hidden_size]  f32; empty without one
  // Shape and dtype of input. Unless empty, the input is first added to it in place, and that sum,
  // rounded to its dtype, is normalised.
  TensorView residual;
  NormKind kind = NormKind::kRmsNorm;
  float eps = 1e-5f;
};
absl::Status Validate(const NormArgs& args);

}  // namespace quire::kernels
