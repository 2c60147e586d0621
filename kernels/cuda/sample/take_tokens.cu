#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample/take_tokens.cuh"

namespace quire::kernels::cuda {

absl::Status TakeTokens(Device& device, const TakeTokensArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const int64_t num_tokens = args.token_ids.dim(0);
  if (num_tokens == 0) return absl::OkStatus();
  const auto num_blocks = static_cast<unsigned>(base::CeilDiv(num_tokens, kTakeTokensThreads));
  return Launch(device, {.grid = {num_blocks}, .block = {kTakeTokensThreads}}, &TakeTokensKernel,
                {.token_ids = args.token_ids.data<int32_t>(),
                 .drawn = args.drawn.data<int32_t>(),
                 .sources = args.sources.data<int32_t>(),
                 .num_tokens = num_tokens,
                 .num_drawn = args.drawn.dim(0)});
}

}  // namespace quire::kernels::cuda
