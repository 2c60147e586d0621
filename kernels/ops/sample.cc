#include "kernels/ops/sample.h"

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {
namespace {

absl::Status CheckIndex(std::string_view what, int64_t index, int64_t low, int64_t end) {
  if (index >= low && index < end) return absl::OkStatus();
  return WantGot(what, absl::StrCat("[", low, ", ", end, ")"), absl::StrCat(index));
}

}  // namespace

absl::Status Validate(const SampleArgs& args) {
  RETURN_IF_ERROR(CheckTensor("logits", args.logits, {DType::kF32}, {kAnyDim, kAnyDim}));
  RETURN_IF_ERROR(CheckTensor("drawn", args.drawn, {DType::kI32}, {kAnyDim}));
  if (args.sampler == nullptr) return WantGot("sampler", "one of this backend", "none");
  for (const SampleRow& row : args.rows) {
    RETURN_IF_ERROR(CheckIndex("rows.row", row.row, 0, args.logits.dim(0)));
    RETURN_IF_ERROR(CheckIndex("rows.num_top", row.num_top.value_or(0), 0, kMostTopLogprobs + 1));
    RETURN_IF_ERROR(CheckIndex("rows.num_best", row.num_best, 0, kMostBest + 1));
    if (row.given >= 0 || row.num_best > 0) continue;
    RETURN_IF_ERROR(CheckIndex("rows.draw", row.draw, 0, args.drawn.dim(0)));
    RETURN_IF_ERROR(CheckIndex("rows.previous", row.previous, -1, args.drawn.dim(0)));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
