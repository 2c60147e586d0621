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
  bool use_all = false;  // false: no more than max_seqs contexts of max_model_len tokens can use
  int64_t max_seqs = 0;
  int64_t max_model_len = 0;    // tokens
  int64_t max_step_tokens = 0;  // max_num_batched_tokens
};

// Sets num_blocks of each group: as many as max_seqs contexts of one length need, with the greatest
// length for which the budget lasts. With contexts longer than the windows, all groups are then
// full at about the same time; every block of a shorter context has its parts. A window has room
// for at least one sequence, and group 0 has the rest of the budget. ResourceExhausted names the
// cure.
absl::Status DivideKvMemory(const KvCacheShape& shape, const KvBudget& budget,
                            std::vector<KvGroup>& groups);

// The configuration of a BlockManager for the blocks of these groups.
BlockManagerConfig BlockConfigFor(std::span<const KvGroup> groups, int32_t block_size,
                                  int64_t max_step_tokens);

}  // namespace quire::engine
