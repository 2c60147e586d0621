#pragma once

// Log-probabilities as the model gave them.

#include <cstdint>
#include <span>

#include "engine/request/token_delta.h"

namespace quire::engine {

// The log softmax of the raw row (temperature 1, no penalty, bias or cut): of `chosen_id`, and of
// the `num_top` likeliest, best first, ties by lower id. Sums as in row_passes.h give the same bits
// wherever the row is computed. NaN counts as -infinity. A row without a finite largest logit has
// no distribution: then the result of `chosen_id` is -infinity and `top` is empty. Thread-safe.
PositionLogprobs ComputeLogprobs(std::span<const float> logits, int32_t chosen_id, int32_t num_top);

}  // namespace quire::engine
