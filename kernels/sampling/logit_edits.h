#pragma once

// Applies a request's biases on single logits, and bans the ids that the request may not draw.

#include <cstdint>
#include <span>

#include "kernels/ops/sample.h"
#include "kernels/token_set.h"

namespace quire::kernels::sampling {

// Adds the bias of each entry to a logit. Several entries of one id add up, in order. This function
// and the next ones ignore ids outside of `logits`.
void ApplyLogitBias(std::span<const LogitBias> biases, std::span<float> logits);

// Sets the logits of all ids but `allowed` to -infinity. Does nothing if `allowed` is empty.
void ApplyAllowedIds(const TokenSet& allowed, std::span<float> logits);

// Sets the logits of `ids` to -infinity.
void Ban(std::span<const int32_t> ids, std::span<float> logits);
void Ban(const TokenSet& ids, std::span<float> logits);

}  // namespace quire::kernels::sampling
