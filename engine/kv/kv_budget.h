#pragma once

// How a budget of memory becomes blocks of each KV group.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "engine/kv/block_manager.h"
#include "engine/kv/kv_cache.h"

namespace quire::engine {

struct KvBudget {
  int64_t bytes = 0;
  bool use_all = false;  // else no more than max_seqs contexts of max_model_len tokens can use
  int64_t max_seqs = 0;
  int64_t max_model_len = 0;    // tokens
  int64_t max_step_tokens = 0;  // max_num_batched_tokens
};

// Gives each group its num_blocks: as many as max_seqs contexts of one length need, the longest
// for which the budget lasts. So where contexts are longer than the windows, all groups are full at
// about the same time; of shorter ones every block has its parts. A window has room for one
// sequence at least, and group 0 what that leaves of the budget. ResourceExhausted names the cure.
absl::Status DivideKvMemory(const KvCacheShape& shape, const KvBudget& budget,
                            std::vector<KvGroup>& groups);

// For the blocks of these groups.
BlockManagerConfig BlockConfigFor(std::span<const KvGroup> groups, int32_t block_size,
                                  int64_t max_step_tokens);

}  // namespace quire::engine
