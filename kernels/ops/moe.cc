#include "kernels/ops/moe.h"

#include <tuple>

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {
namespace {

absl::Status CheckWeight(std::string_view what, const PreparedWeight* weight, int64_t rows,
                         int64_t cols) {
  if (weight == nullptr) return WantGot(what, "a prepared weight", "none");
  if (weight->rows() == rows && weight->cols() == cols) return absl::OkStatus();
  return WantGot(what, absl::StrCat("[", rows, ", ", cols, "]"),
                 absl::StrCat("[", weight->rows(), ", ", weight->cols(), "]"));
}

}  // namespace

absl::Status Validate(const MoeArgs& args) {
  RETURN_IF_ERROR(CheckActivations("input", args.input, {kAnyDim, kAnyDim}));
  const int64_t num_tokens = args.input.dim(0), hidden = args.input.dim(1);
  if (hidden == 0) return WantGot("input", "hidden_size > 0", args.input.ToString());
  RETURN_IF_ERROR(CheckActivations("out", args.out, {num_tokens, hidden}));
  RETURN_IF_ERROR(CheckSameDType("out", args.out, args.input));
  if (args.out.raw() == args.input.raw() && num_tokens > 0) {
    return WantGot("out", "memory that is not the input's", "the input");
  }
  if (args.router == nullptr) return WantGot("router", "a prepared weight", "none");
  if (args.down == nullptr) return WantGot("down", "a prepared weight", "none");
  const int64_t experts = NumExperts(args);
  RETURN_IF_ERROR(CheckWeight("router", args.router, experts, hidden));
  RETURN_IF_ERROR(CheckWeight("down", args.down, experts * hidden, IntermediateSize(args)));
  RETURN_IF_ERROR(CheckWeight("up", args.up, experts * 2 * IntermediateSize(args), hidden));
  for (const auto& [what, bias, weight] :
       {std::tuple("router_bias", &args.router_bias, args.router),
        std::tuple("choice_bias", &args.choice_bias, args.router),
        std::tuple("up_bias", &args.up_bias, args.up),
        std::tuple("down_bias", &args.down_bias, args.down)}) {
    if (bias->empty()) continue;
    RETURN_IF_ERROR(CheckTensor(what, *bias, {DType::kF32}, {weight->rows()}));
  }
  if (!args.choice_bias.empty() && args.weights != ExpertWeights::kNormedLogistic) {
    return WantGot("choice_bias", "none but with kNormedLogistic", args.choice_bias.ToString());
  }
  if (!args.residual.empty()) {
    RETURN_IF_ERROR(CheckActivations("residual", args.residual, {num_tokens, hidden}));
    RETURN_IF_ERROR(CheckSameDType("residual", args.residual, args.out));
  }
  if (args.num_experts_per_token < 1 || args.num_experts_per_token > experts) {
    return WantGot("num_experts_per_token", absl::StrCat("1 to ", experts),
                   absl::StrCat(args.num_experts_per_token));
  }
  if (!IsGated(args.activation)) return WantGot("activation", "a gated one", "another");
  RETURN_IF_ERROR(CheckActivationLimit(args.activation, args.activation_limit));
  return absl::OkStatus();
}

}  // namespace quire::kernels
