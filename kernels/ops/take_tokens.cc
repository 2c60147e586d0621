#include "kernels/ops/take_tokens.h"

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {

absl::Status Validate(const TakeTokensArgs& args) {
  RETURN_IF_ERROR(CheckTensor("token_ids", args.token_ids, {DType::kI32}, {kAnyDim}));
  RETURN_IF_ERROR(CheckTensor("drawn", args.drawn, {DType::kI32}, {kAnyDim}));
  return CheckTensor("sources", args.sources, {DType::kI32}, {args.token_ids.dim(0)});
}

}  // namespace quire::kernels
