#pragma once

// Computes log-probabilities from the logits as the model gave them.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/sample.h"

namespace quire::kernels::sampling {

// Returns the log softmax of one logit. `log_sum` is the logarithm of the sum of e^(logit - max)
// over the row. NaN counts as -infinity.
float Logprob(float logit, float max, double log_sum);

// Returns the log softmax of the raw row (temperature 1, no penalty, bias or cut) for `chosen_id`
// and for the `num_top` likeliest ids. The likeliest is first, and of equally likely ids the lower.
// The denominator is computed by row_passes.h, so the result has the same bits wherever the row is
// computed. NaN counts as -infinity. If the largest logit is not finite, the row has no
// distribution. Then the log-probability of `chosen_id` is -infinity, and `top` is empty.
// Thread-safe.
PositionLogprobs ComputeLogprobs(std::span<const float> logits, int32_t chosen_id, int32_t num_top);

// Returns the rank of `id` in the raw row: 1 + the number of ids that come before it, in the order
// of ComputeLogprobs. Reads the row once. Thread-safe.
int32_t RankOf(std::span<const float> logits, int32_t id);

// Returns the log softmax of the raw row for the `num_best` likeliest ids of `eligible`, or for all
// of them if there are fewer. `eligible` begins like the raw row, but ids that are not wanted are
// -infinity there. Order, ties and bits are those of ComputeLogprobs. The largest values of both
// must be finite. Thread-safe.
std::vector<TokenLogprob> ComputeBest(std::span<const float> logits,
                                      std::span<const float> eligible, int32_t num_best);

}  // namespace quire::kernels::sampling
