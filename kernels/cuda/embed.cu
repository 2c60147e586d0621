#include "base/status_macros.h"
#include "kernels/cuda/cuda_weight.h"
#include "kernels/cuda/embed.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/row_launch.h"

namespace quire::kernels::cuda {

absl::Status Embed(Device& device, const EmbedArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  const int64_t num_tokens = args.out.dim(0), cols = weight.cols();
  if (num_tokens == 0) return absl::OkStatus();
  const EmbedParams params = {.out = args.out.raw(),
                              .token_ids = args.token_ids.data<int32_t>(),
                              .table = weight.data(),
                              .rows = weight.rows(),
                              .cols = cols,
                              .scale = args.scale};
  return WithElementType(weight.dtype(), [&](auto table) {
    return WithElementType(args.out.dtype(), [&](auto element) {
      using Table = decltype(table);
      using T = decltype(element);
      return WithVectorOf<T>(cols, [&](auto count) -> absl::Status {
        constexpr int kCount = decltype(count)::value;
        if (kCount > 1) RETURN_IF_ERROR(CheckAligned({{"out", &args.out}}));
        return Launch(
            device,
            {.grid = {static_cast<unsigned>(num_tokens)}, .block = {RowThreads(cols, kCount)}},
            &EmbedKernel<Table, T, kCount>, params);
      });
    });
  });
}

}  // namespace quire::kernels::cuda
