#pragma once

// Two calls of the op Sample. The second continues the first.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace quire::testing {

struct TwoCalls {
  std::vector<kernels::SampledRow> first, second;
  std::vector<int32_t> drawn;  // SampleArgs::drawn after the second call
};

// Enqueues two calls and then waits for both. Their works use every sampling stage, and some works
// share a row. One work of each call computes the log-probability of a given token. The works of
// the second call use tokens of the first that the host does not know yet. `num_ids` is the length
// of a row, at least 90.
TwoCalls SampleTwice(kernels::Backend& backend, int64_t num_ids);

// Returns all ids and log-probabilities, bit for bit, one row per line.
std::string ToText(const TwoCalls& calls);

}  // namespace quire::testing
