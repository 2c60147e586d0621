#include "kernels/ops/linear.h"

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {

absl::Status Validate(const LinearArgs& args) {
  if (args.weight == nullptr) return WantGot("weight", "a prepared weight", "none");
  const int64_t rows = args.weight->rows();
  const bool gated = IsGated(args.activation);
  if (gated && rows % 2 != 0) {
    return WantGot("weight", "an even number of rows for gate and up", absl::StrCat(rows));
  }
  const int64_t out_cols = gated ? rows / 2 : rows;
  RETURN_IF_ERROR(CheckActivations("input", args.input, {kAnyDim, args.weight->cols()}));
  RETURN_IF_ERROR(CheckActivations("out", args.out, {args.input.dim(0), out_cols}));
  if (!args.bias.empty()) {
    RETURN_IF_ERROR(CheckTensor("bias", args.bias, {DType::kF32}, {rows}));
  }
  if (!args.residual.empty()) {
    RETURN_IF_ERROR(CheckActivations("residual", args.residual, {args.input.dim(0), out_cols}));
    RETURN_IF_ERROR(CheckSameDType("residual", args.residual, args.out));
  }
  RETURN_IF_ERROR(CheckActivationLimit(args.activation, args.activation_limit));
  if (!(args.soft_cap >= 0.0f)) {
    return WantGot("soft_cap", ">= 0", absl::StrCat(args.soft_cap));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
