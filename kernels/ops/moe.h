#pragma once

// A mixture of experts: feed-forward networks of which a router chooses a few for each token.
//   logits = input . router^T
//   chosen = the num_experts_per_token largest logits, largest first, ties by lower id
//   weight of e, one of the chosen = softmax(logits)[e], over the chosen, or over all experts
//   out = sum of weight * (down_e . activation(up_e . input)), largest first (+ residual)
// Experts have no capacity limit: a token gets all the experts that were chosen for it.
//
// Numeric: products as `linear` computes them; softmax and sum in float32. One row of `out` depends
//          only on one row of `input` and on the weights: the order of its sum is the router's,
//          whatever other rows chose. NaN counts as the largest logit. If a row's largest logit is
//          not finite, its `out` is NaN, and no other row's.
// Cost:    decode is bound by reading the weights of the chosen experts, each once; prefill by its
//          6 * num_tokens * num_experts_per_token * intermediate_size * hidden_size FLOPs.
// Errors:  InvalidArgument before anything is computed.
// Sources: sparsely gated experts arXiv:1701.06538, softmax over the chosen arXiv:2401.04088
//          (Mixtral), tokens grouped by expert without dropping any arXiv:2211.15841 (MegaBlocks).

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/activation.h"
#include "kernels/prepared_weight.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

struct MoeArgs {
  TensorView out;                          // [num_tokens, hidden_size]  written
  TensorView input;                        // shape and dtype of out; not `out`
  const PreparedWeight* router = nullptr;  // [num_experts, hidden_size]
  // Expert after expert; for each the gate's rows, then the up projection's.
  const PreparedWeight* up = nullptr;    // [num_experts * 2 * intermediate_size, hidden_size]
  const PreparedWeight* down = nullptr;  // [num_experts * hidden_size, intermediate_size]
  TensorView residual;                   // shape and dtype of out; may be `out`; empty without one
  int64_t num_experts_per_token = 0;     // 1 to num_experts
  bool softmax_over_chosen = true;       // their weights sum to 1; otherwise those of all do
  Activation activation = Activation::kSiluMul;  // a gated one
};
absl::Status Validate(const MoeArgs& args);

// For arguments that Validate has accepted.
inline int64_t NumExperts(const MoeArgs& args) { return args.router->rows(); }
inline int64_t IntermediateSize(const MoeArgs& args) { return args.down->cols(); }

}  // namespace quire::kernels
