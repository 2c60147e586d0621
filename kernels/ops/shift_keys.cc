#include "kernels/ops/shift_keys.h"

#include <cmath>

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {

absl::Status Validate(const ShiftKeysArgs& args) {
  RETURN_IF_ERROR(CheckKvCache(args.kv_cache, kAnyDim, kAnyDim));
  const int64_t num_blocks = args.kv_cache.num_blocks(), key_dim = args.kv_cache.key_dim();
  if (args.rope_layout == RopeLayout::kNone) {
    return WantGot("rope_layout", "keys that a rotary embedding turned", "none");
  }
  RETURN_IF_ERROR(CheckTensor("rope_table", args.rope_table, {DType::kF32}, {kAnyDim, kAnyDim, 2}));
  if (2 * args.rope_table.dim(1) > key_dim) {
    return WantGot("rope_table", absl::StrCat("rope_dim / 2 at most ", key_dim / 2),
                   args.rope_table.ToString());
  }
  if (!(args.table_scale > 0.0f) || !std::isfinite(args.table_scale)) {
    return WantGot("table_scale", "> 0", absl::StrCat(args.table_scale));
  }
  for (const KeyShift& shift : args.shifts) {
    if (shift.block < 0 || shift.block >= num_blocks) {
      return WantGot("shifts", absl::StrCat("blocks in [0, ", num_blocks, ")"),
                     absl::StrCat(shift.block));
    }
    if (shift.distance < 0 || shift.distance >= args.rope_table.dim(0)) {
      return WantGot("shifts", absl::StrCat("distances in [0, ", args.rope_table.dim(0), ")"),
                     absl::StrCat(shift.distance));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
