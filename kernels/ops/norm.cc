#include "kernels/ops/norm.h"

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {

absl::Status Validate(const NormArgs& args) {
  RETURN_IF_ERROR(CheckActivations("input", args.input, {kAnyDim, kAnyDim}));
  const int64_t hidden = args.input.dim(1);
  if (hidden == 0) return WantGot("input", "hidden_size > 0", args.input.ToString());
  RETURN_IF_ERROR(CheckActivations("out", args.out, {args.input.dim(0), hidden}));
  RETURN_IF_ERROR(CheckSameDType("out", args.out, args.input));
  RETURN_IF_ERROR(CheckTensor("weight", args.weight, {DType::kF32}, {hidden}));
  if (!args.bias.empty()) {
    RETURN_IF_ERROR(CheckTensor("bias", args.bias, {DType::kF32}, {hidden}));
  }
  if (!args.residual.empty()) {
    RETURN_IF_ERROR(CheckActivations("residual", args.residual, {args.input.dim(0), hidden}));
    RETURN_IF_ERROR(CheckSameDType("residual", args.residual, args.input));
  }
  if (!(args.eps >= 0.0f)) return WantGot("eps", ">= 0", absl::StrCat(args.eps));
  return absl::OkStatus();
}

}  // namespace quire::kernels
