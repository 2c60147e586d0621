#pragma once

// Copies whole blocks of the KV cache, all layers at once, for copy-on-write. The copies run before
// the step's KV writes. The sources and destinations of one call are disjoint.

#include <span>

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

struct BlockCopy {
  int32_t source = 0;
  int32_t destination = 0;
};

struct CopyBlocksArgs {
  TensorView blocks;                  // [num_blocks, elements of a block]
  std::span<const BlockCopy> copies;  // on the host
};
absl::Status Validate(const CopyBlocksArgs& args);

}  // namespace quire::kernels
