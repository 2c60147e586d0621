#include "kernels/ops/copy_blocks.h"

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {

absl::Status Validate(const CopyBlocksArgs& args) {
  RETURN_IF_ERROR(CheckTensor("blocks", args.blocks,
                              {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3},
                              {kAnyDim, kAnyDim}));
  const int64_t num_blocks = args.blocks.dim(0);
  for (const BlockCopy& copy : args.copies) {
    for (const int32_t block : {copy.source, copy.destination}) {
      if (block >= 0 && block < num_blocks) continue;
      return WantGot("copies", absl::StrCat("blocks in [0, ", num_blocks, ")"),
                     absl::StrCat(block));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
