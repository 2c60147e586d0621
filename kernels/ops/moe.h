#pragma once

// Computes a mixture of experts. The experts are feed-forward networks. A router chooses a few of
// them for each token.
//   logits = input . router^T (+ router_bias)
//   chosen = the num_experts_per_token largest logits, largest first, ties by lower id; with
//            kNormedLogistic the largest values of 1 / (1 + e^-logit) (+ choice_bias)
//   weight_e = the weight of each chosen e, from the logits (see ExpertWeights)
//   y_e = down_e . activation(up_e . input (+ up_bias_e)) (+ down_bias_e)
//   out = sum of weight_e * y_e, largest first (+ residual)
// With weights_scale_input, the weights scale the inputs of the experts instead of their outputs:
//   y_e = down_e . activation(up_e . (weight_e * input) (+ up_bias_e)) (+ down_bias_e)
//   out = sum of y_e, largest first (+ residual)
// Experts have no capacity limit: a token gets all the experts that the router chose for it.
//
// Numeric: on the CPU, products are computed as the op Linear computes them. Weights and sum are in
//          float32. A row of `out` depends only on the weights and the same row of `input` and
//          `residual`; on a GPU that is not deterministic, the order of the sums of its products
//          may also depend on the number of rows. The experts are added in the order in which the
//          router chose them. NaN counts as the largest logit. If the largest logit of a row is
//          NaN, or infinite under a softmax, that row of `out` is NaN, and the other rows are not
//          affected.
// Cost:    decode is bound by reading the weights of the chosen experts, each once. Prefill is
//          bound by 6 * num_tokens * num_experts_per_token * intermediate_size * hidden_size FLOPs.
// Errors:  InvalidArgument before anything is computed.
// Sources: sparsely gated experts arXiv:1701.06538, softmax over the chosen arXiv:2401.04088
//          (Mixtral), tokens grouped by expert without dropping any arXiv:2211.15841 (MegaBlocks),
//          weights of inputs: Llama 4 in Hugging Face's transformers.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/activation.h"
#include "kernels/expert_weights.h"
#include "kernels/prepared_weight.h"
#include "kernels/tensor_view.h"

namespace quire::kernels {

struct MoeArgs {
  TensorView out;                          // [num_tokens, hidden_size]  written
  TensorView input;                        // shape and dtype of out; not `out`
  const PreparedWeight* router = nullptr;  // [num_experts, hidden_size]
  // Contains, for each expert, the rows of the gate projection, then the rows of the up projection.
  const PreparedWeight* up = nullptr;    // [num_experts * 2 * intermediate_size, hidden_size]
  const PreparedWeight* down = nullptr;  // [num_experts * hidden_size, intermediate_size]
  TensorView router_bias;                // [num_experts]  f32; empty: none
  TensorView choice_bias;             // [num_experts]  f32; only with kNormedLogistic; empty: none
  TensorView up_bias;                 // [num_experts * 2 * intermediate_size]  f32; empty: none
  TensorView down_bias;               // [num_experts * hidden_size]  f32; empty: none
  TensorView residual;                // shape and dtype of out; may be `out`; empty: none
  int64_t num_experts_per_token = 0;  // 1 to num_experts
  ExpertWeights weights = ExpertWeights::kSoftmaxOfChosen;
  bool weights_scale_input = false;              // true: a weight scales the input of its expert
  Activation activation = Activation::kSiluMul;  // must be gated
  float activation_limit = 0.0f;                 // as in LinearArgs
};
absl::Status Validate(const MoeArgs& args);

// The functions below need arguments that Validate has accepted.
inline int64_t NumExperts(const MoeArgs& args) { return args.router->rows(); }
inline int64_t IntermediateSize(const MoeArgs& args) { return args.down->cols(); }

}  // namespace quire::kernels
