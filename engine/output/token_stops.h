#pragma once

// Decides if a drawn token ends its sequence, by its id or by the length. Stop strings are found in
// the text, by engine/output/.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request/request.h"

namespace quire::engine {

struct TokenVerdict {
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;  // with kStop
};

// Returns whether token `id` ends its sequence, and why. `num_generated` includes this token. A
// stop id at the maximum length gives kStop. Within the first min_tokens tokens no id stops the
// sequence, and the sampler draws no stop id there. Request::max_tokens is already limited by the
// context.
TokenVerdict CheckTokenStops(const Request& request, std::span<const int32_t> end_ids, int32_t id,
                             int64_t num_generated);

}  // namespace quire::engine
