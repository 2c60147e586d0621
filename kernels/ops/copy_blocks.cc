#include "kernels/ops/copy_blocks.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {
namespace {

// Copies may run in any order, so a block that one of them writes may be in no other one.
absl::Status CheckDisjoint(std::span<const BlockCopy> copies) {
  std::vector<int32_t> written;
  written.reserve(copies.size());
  for (const BlockCopy& copy : copies) written.push_back(copy.destination);
  std::ranges::sort(written);
  if (const auto twice = std::ranges::adjacent_find(written); twice != written.end()) {
    return WantGot("copies", "each destination once", absl::StrCat(*twice, " twice"));
  }
  for (const BlockCopy& copy : copies) {
    if (!std::ranges::binary_search(written, copy.source)) continue;
    return WantGot("copies", "sources that are no destinations", absl::StrCat(copy.source));
  }
  return absl::OkStatus();
}

}  // namespace

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
  return CheckDisjoint(args.copies);
}

}  // namespace quire::kernels
