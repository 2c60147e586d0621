#pragma once

// Copies whole blocks of the KV cache for copy-on-write. A block contains the keys and values of
// all layers of a cache group (engine/kv/kv_cache.h). The copies run before the KV writes of the
// step. The sources and destinations of one call are disjoint.

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
// Refuses a destination that comes twice or is a source.
absl::Status Validate(const CopyBlocksArgs& args);

}  // namespace quire::kernels
