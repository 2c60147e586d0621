#pragma once

// Decides if a drawn token ends its sequence, by its id or by the length. Stop strings are text,
// and are found in engine/output/.

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

// `num_generated` counts `id` too. A stop id ends the sequence with kStop even where the length is
// reached too. No id stops the sequence within the first min_tokens tokens; the sampler draws none
// there. Request::max_tokens is already limited by the context.
TokenVerdict CheckTokenStops(const Request& request, std::span<const int32_t> end_ids, int32_t id,
                             int64_t num_generated);

// True if the token after `num_generated` may not be one that ends the sequence.
bool MustGoOn(const StopParams& stop, int64_t num_generated);

}  // namespace quire::engine
