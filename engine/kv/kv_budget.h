#pragma once

// Divides a memory budget into the blocks of each KV group.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "engine/kv/block_manager.h"
#include "engine/kv/kv_cache.h"

namespace quire::engine {

struct KvBudget {
  int64_t bytes = 0;
  bool use_all = false;  // false: use at most what max_seqs contexts of max_model_len tokens need
  int64_t max_seqs = 0;
  int64_t max_model_len = 0;    // tokens
  int64_t max_step_tokens = 0;  // max_num_batched_tokens
  int32_t pipeline_depth = 0;   // see BackendInfo
};

// Sets num_blocks of each group to the blocks that max_seqs contexts of one length need. The length
// is the greatest for which the budget suffices, up to max_model_len. With contexts longer than the
// windows, all groups are then full at about the same time. Every block of a shorter context has a
// part in each window. A window has room for at least one sequence. If the length is below
// max_model_len, group 0 gets the rest of the budget. Otherwise, if use_all is set, all groups are
// enlarged in proportion. Returns ResourceExhausted, with a message that names the remedy, if the
// budget is too small.
absl::Status DivideKvMemory(const KvCacheShape& shape, const KvBudget& budget,
                            std::vector<KvGroup>& groups);

// Returns the configuration of a BlockManager for the blocks of these groups.
BlockManagerConfig BlockConfigFor(std::span<const KvGroup> groups, int32_t block_size,
                                  int64_t max_step_tokens, int32_t pipeline_depth);

}  // namespace quire::engine
