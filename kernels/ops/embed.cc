#include "kernels/ops/embed.h"

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {

absl::Status Validate(const EmbedArgs& args) {
  if (args.weight == nullptr) return WantGot("weight", "a prepared weight", "none");
  RETURN_IF_ERROR(CheckTensor("token_ids", args.token_ids, {DType::kI32}, {kAnyDim}));
  return CheckActivations("out", args.out, {args.token_ids.dim(0), args.weight->cols()});
}

}  // namespace quire::kernels
