#include "kernels/cuda/emulator/execution.h"

#include "base/status_macros.h"

namespace quire::kernels::cuda::emulator {

absl::Status RunGrid(const LaunchConfig& config, absl::FunctionRef<void()> kernel,
                     const ExecutionOptions& options, int compute_capability) {
  const EmulatorsOwn own;
  ThreadBlock block(config, kernel, options, compute_capability);
  Index3 index = {};
  for (index.z = 0; index.z < config.grid.z; ++index.z) {
    for (index.y = 0; index.y < config.grid.y; ++index.y) {
      for (index.x = 0; index.x < config.grid.x; ++index.x) RETURN_IF_ERROR(block.Run(index));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda::emulator
