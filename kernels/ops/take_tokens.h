#pragma once

// Copies the tokens that the previous step drew into the input of this step, without the host:
// token_ids[i] = drawn[sources[i]] wherever sources[i] is not -1.

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

struct TakeTokensArgs {
  TensorView token_ids;  // [num_tokens]  int32, written where sources is not -1
  TensorView drawn;      // [num_drawn]   int32
  TensorView sources;    // [num_tokens]  int32, each in [-1, num_drawn)
};
absl::Status Validate(const TakeTokensArgs& args);

}  // namespace quire::kernels
