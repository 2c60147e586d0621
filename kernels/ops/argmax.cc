#include "kernels/ops/argmax.h"

#include <limits>

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {

absl::Status Validate(const ArgmaxArgs& args) {
  RETURN_IF_ERROR(CheckTensor("values", args.values, {DType::kF32}, {kAnyDim, kAnyDim}));
  constexpr int64_t kMaxCols = std::numeric_limits<int32_t>::max();
  if (args.values.dim(1) == 0 || args.values.dim(1) > kMaxCols) {
    return WantGot("values", absl::StrCat("rows of 1 to ", kMaxCols), args.values.ToString());
  }
  return CheckTensor("out", args.out, {DType::kI32}, {args.values.dim(0)});
}

}  // namespace quire::kernels
