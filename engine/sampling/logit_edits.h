#pragma once

// A request's biases on single logits, and the ids that it may not draw.

#include <cstdint>
#include <span>

#include "engine/request/sampling_params.h"
#include "engine/request/token_set.h"

namespace quire::engine {

// Adds each entry's bias; entries of one id add up, in order. Ids outside of `logits` are ignored,
// here and below.
void ApplyLogitBias(std::span<const LogitBias> biases, std::span<float> logits);

// Sets all ids but `allowed` to -infinity; empty: no change.
void ApplyAllowedIds(const TokenSet& allowed, std::span<float> logits);

// Sets `ids` to -infinity.
void Ban(std::span<const int32_t> ids, std::span<float> logits);
void Ban(const TokenSet& ids, std::span<float> logits);

}  // namespace quire::engine
