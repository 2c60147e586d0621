#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample/argmax.cuh"

namespace quire::kernels::cuda {

absl::Status Argmax(Device& device, const ArgmaxArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const int64_t rows = args.values.dim(0), cols = args.values.dim(1);
  if (rows == 0) return absl::OkStatus();
  const ArgmaxParams params = {.out = args.out.data<int32_t>(),
                               .values = args.values.data<float>(),
                               .cols = static_cast<int32_t>(cols)};
  return Launch(device,
                {.grid = {static_cast<unsigned>(rows)},
                 .block = {RowThreads(cols, 1)},
                 .shared_bytes = kArgmaxSharedBytes},
                &ArgmaxKernel, params);
}

}  // namespace quire::kernels::cuda
