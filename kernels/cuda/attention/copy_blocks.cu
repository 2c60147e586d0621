#include "base/status_macros.h"
#include "kernels/cuda/attention/copy_blocks.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/ops.h"

namespace quire::kernels::cuda {

absl::Status CopyBlocks(Device& device, const CopyBlocksArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const int64_t block_bytes = args.blocks.dim(1) * SizeOf(args.blocks.dtype());
  if (block_bytes % 2 != 0) {
    return WantGot("blocks", "an even number of bytes", args.blocks.ToString());
  }
  const int64_t words = block_bytes / 2;
  if (words == 0) return absl::OkStatus();
  return WithVectorOf<uint16_t>(words, [&](auto count) -> absl::Status {
    constexpr int kCount = decltype(count)::value;
    if (kCount > 1) RETURN_IF_ERROR(CheckAligned({{"blocks", &args.blocks}}));
    constexpr int64_t kUnitsPerBlock = int64_t{kCopyThreads} * kUnitsPerCopyThread;
    const int64_t size = words / kCount;
    CopyBlocksParams params = {.blocks = args.blocks.raw(), .size = size, .copies = {}};
    for (size_t first = 0; first < args.copies.size(); first += kMaxCopiesPerLaunch) {
      const auto copies = args.copies.subspan(
          first, std::min<size_t>(kMaxCopiesPerLaunch, args.copies.size() - first));
      std::copy(copies.begin(), copies.end(), params.copies);
      RETURN_IF_ERROR(
          Launch(device,
                 {.grid = {static_cast<unsigned>((size + kUnitsPerBlock - 1) / kUnitsPerBlock),
                           static_cast<unsigned>(copies.size())},
                  .block = {kCopyThreads}},
                 &CopyBlocksKernel<kCount>, params));
    }
    return absl::OkStatus();
  });
}

}  // namespace quire::kernels::cuda
