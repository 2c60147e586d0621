#pragma once

// What a request adds to single logits, and the ids it may not draw.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/sampling_params.h"

namespace quire::engine {

// Adds each entry's bias; entries of one id add up, in order. Ids outside of `logits` are passed
// over here and below.
void ApplyLogitBias(std::span<const LogitBias> biases, std::span<float> logits);

// Everything but `allowed` becomes -infinity; empty: no change. `scratch` keeps the memory.
void ApplyAllowedIds(std::span<const int32_t> allowed, std::vector<float>& scratch,
                     std::span<float> logits);

// `ids` become -infinity.
void Ban(std::span<const int32_t> ids, std::span<float> logits);

}  // namespace quire::engine
