#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/attention/update_table.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/ops.h"

namespace quire::kernels::cuda {

absl::Status UpdateTable(Device& device, const UpdateTableArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const int64_t num_changes = args.changes.dim(0);
  if (num_changes == 0) return absl::OkStatus();
  const auto num_blocks =
      static_cast<unsigned>(base::CeilDiv(num_changes, int64_t{kUpdateTableThreads}));
  return Launch(
      device, {.grid = {num_blocks}, .block = {kUpdateTableThreads}}, &UpdateTableKernel,
      {.table = args.table.data<int32_t>(),
       .changes = reinterpret_cast<const TableChange*>(args.changes.data<const int32_t>()),
       .num_entries = args.table.dim(0),
       .num_changes = num_changes});
}

}  // namespace quire::kernels::cuda
