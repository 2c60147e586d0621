#pragma once

// A step of one sequence that has the whole cache to itself: no scheduler, no block manager.

#include <cstdint>
#include <span>

#include "engine/batch/model_input.h"
#include "engine/kv/kv_cache.h"

namespace quire::engine {

// The step of `tokens` at positions first_position, first_position + 1, ..., in blocks 0, 1, ... of
// the cache; the blocks of a window are reused from 0 when all are used. Earlier steps fed the
// tokens before first_position. The last num_logit_rows tokens give logits.
ModelInput MakeLoneInput(std::span<const int32_t> tokens, int64_t first_position,
                         int64_t num_logit_rows, const KvCache& cache);

}  // namespace quire::engine
