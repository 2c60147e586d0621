#pragma once

// Makes the input of a step for one sequence that has the whole cache to itself, without a
// scheduler and a block manager.

#include <cstdint>
#include <span>

#include "engine/batch/model_input.h"
#include "engine/kv/kv_cache.h"

namespace quire::engine {

// Returns the input of a step that computes `tokens`, the first at first_position. The sequence
// uses blocks 0, 1, ... of each KV group. When all blocks of a group are used, they are reused from
// block 0 on. Earlier steps must have computed the tokens before first_position. The last
// num_logit_rows tokens give logits.
ModelInput MakeLoneInput(std::span<const int32_t> tokens, int64_t first_position,
                         int64_t num_logit_rows, const KvCache& cache);

// Returns the input of a decode step of `num_seqs` sequences with one token each, `token`, at
// position 0. All of them read block 0 of each KV group, and none writes K and V.
ModelInput MakeIdleDecodes(int64_t num_seqs, int32_t token, const KvCache& cache);

}  // namespace quire::engine
