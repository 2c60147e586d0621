#pragma once

// Gathers the rows of a step that need logits: out[i] = input[rows[i]].

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

struct GatherRowsArgs {
  TensorView out;    // [num_rows, hidden_size]  activation dtype, written
  TensorView input;  // [num_tokens, hidden_size]
  TensorView rows;   // [num_rows]  int32, each in [0, num_tokens)
};
absl::Status Validate(const GatherRowsArgs& args);

}  // namespace quire::kernels
