#include "kernels/ops/gather_rows.h"

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {

absl::Status Validate(const GatherRowsArgs& args) {
  RETURN_IF_ERROR(CheckActivations("input", args.input, {kAnyDim, kAnyDim}));
  RETURN_IF_ERROR(CheckTensor("rows", args.rows, {DType::kI32}, {kAnyDim}));
  RETURN_IF_ERROR(CheckActivations("out", args.out, {args.rows.dim(0), args.input.dim(1)}));
  return CheckSameDType("out", args.out, args.input);
}

}  // namespace quire::kernels
