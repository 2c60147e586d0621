#pragma once

// Makes the inputs of steps without a scheduler and a block manager: of one sequence that has the
// whole cache to itself, and of steps that leave no trace.

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

// Returns the input of a step of `num_tokens` tokens, each of which is `token`. They are prompts of
// `seq_len` tokens, of which the last may be shorter. All keys that they read are in block 0 of
// each KV group, and no K and V are written. The first num_logit_rows tokens give logits.
ModelInput MakeIdleInput(int64_t num_tokens, int64_t seq_len, int64_t num_logit_rows, int32_t token,
                         const KvCache& cache);

// Returns the input of a step of `num_seqs` decodes, each of one `token`, which share as few keys
// as decodes can share. All keys that they read are in block 0 of each KV group, and no K and V are
// written.
ModelInput MakeSharingInput(int64_t num_seqs, int32_t token, const KvCache& cache);

}  // namespace quire::engine
