#pragma once

// Looks up rows of the token embedding.
//   out[t] = scale * weight[token_ids[t]]
//
// Numeric: each weight is dequantised to float32 exactly as in kernels/quant/dequantize.h, then
//          multiplied once by `scale`.
// Errors:  InvalidArgument for shapes or dtypes not listed. The frontend has checked the token ids.

#include "absl/status/status.h"

#include "kernels/prepared_weight.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

struct EmbedArgs {
  TensorView out;                          // [num_tokens, hidden_size]  activation dtype, written
  TensorView token_ids;                    // [num_tokens]  int32, each in [0, vocab_size)
  const PreparedWeight* weight = nullptr;  // [vocab_size, hidden_size]
  float scale = 1.0f;
};
absl::Status Validate(const EmbedArgs& args);

}  // namespace quire::kernels
