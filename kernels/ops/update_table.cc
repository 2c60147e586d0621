#include "kernels/ops/update_table.h"

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {

absl::Status Validate(const UpdateTableArgs& args) {
  RETURN_IF_ERROR(CheckTensor("table", args.table, {DType::kI32}, {kAnyDim}));
  return CheckTensor("changes", args.changes, {DType::kI32}, {kAnyDim, 2});
}

}  // namespace quire::kernels
