#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/sample/sample.cuh"

namespace quire::kernels::cuda {

absl::Status LaunchSample(Device& device, const SampleKernelParams& params, int32_t* drawn,
                          int64_t grid_size) {
  // The short rows of tests need few threads.
  const int64_t threads = std::clamp(base::RoundUp(int64_t{params.num_ids / 8}, kWarpLanes),
                                     int64_t{32}, int64_t{kMostSampleThreads});
  RETURN_IF_ERROR(
      Launch(device,
             {.grid = {static_cast<unsigned>(std::min<int64_t>(params.num_rows, grid_size))},
              .block = {static_cast<unsigned>(threads)},
              .shared_bytes = kSampleSharedBytes},
             &SampleKernel<kMostSampleThreads>, params));
  const auto num_blocks = static_cast<unsigned>(base::CeilDiv(params.num_rows, kStoreDrawnThreads));
  return Launch(device, {.grid = {num_blocks}, .block = {kStoreDrawnThreads}},
                &StoreDrawnKernel<kStoreDrawnThreads>,
                {.rows = params.rows,
                 .results = params.results,
                 .drawn = drawn,
                 .num_rows = params.num_rows});
}

}  // namespace quire::kernels::cuda
