#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/ops.h"

namespace quire::kernels::cuda {

absl::Status Norm(Device& device, const NormArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const int64_t num_tokens = args.input.dim(0), hidden = args.input.dim(1);
  if (num_tokens == 0) return absl::OkStatus();
  const NormParams params = {.out = args.out.raw(),
                             .input = args.input.raw(),
                             .weight = args.weight.data<float>(),
                             .bias = args.bias.data<float>(),
                             .residual = args.residual.raw(),
                             .hidden = hidden,
                             .eps = args.eps,
                             .layer_norm = args.kind == NormKind::kLayerNorm};
  return WithElementType(args.input.dtype(), [&](auto element) {
    using T = decltype(element);
    return WithVectorOf<T>(hidden, [&](auto count) -> absl::Status {
      constexpr int kCount = decltype(count)::value;
      if (kCount > 1) {
        RETURN_IF_ERROR(CheckAligned({{"out", &args.out},
                                      {"input", &args.input},
                                      {"weight", &args.weight},
                                      {"bias", &args.bias},
                                      {"residual", &args.residual}}));
      }
      return Launch(device,
                    {.grid = {static_cast<unsigned>(num_tokens)},
                     .block = {RowThreads(hidden, kCount)},
                     .shared_bytes = kBlockSumBytes},
                    &NormKernel<T, kCount>, params);
    });
  });
}

}  // namespace quire::kernels::cuda
