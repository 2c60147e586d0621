#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/gather_rows.cuh"
#include "kernels/cuda/ops.h"

namespace quire::kernels::cuda {

absl::Status GatherRows(Device& device, const GatherRowsArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  if (args.out.num_elements() == 0) return absl::OkStatus();
  const int64_t words = args.input.dim(1) * SizeOf(args.input.dtype()) / 2;
  return WithVectorOf<uint16_t>(words, [&](auto count) -> absl::Status {
    constexpr int kCount = decltype(count)::value;
    if (kCount > 1) RETURN_IF_ERROR(CheckAligned({{"out", &args.out}, {"input", &args.input}}));
    const GatherRowsParams params = {.out = args.out.raw(),
                                     .input = args.input.raw(),
                                     .rows = args.rows.data<int32_t>(),
                                     .num_inputs = args.input.dim(0),
                                     .size = words / kCount};
    return Launch(
        device,
        {.grid = {static_cast<unsigned>(args.out.dim(0))}, .block = {RowThreads(words, kCount)}},
        &GatherRowsKernel<kCount>, params);
  });
}

}  // namespace quire::kernels::cuda
