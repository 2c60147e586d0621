#include "engine/output/token_stops.h"

#include <algorithm>

namespace quire::engine {
namespace {

bool Contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

TokenVerdict CheckTokenStops(const Request& request, std::span<const int32_t> end_ids, int32_t id,
                             int64_t num_generated) {
  const StopParams& stop = request.params.stop;
  if (!stop.must_go_on(num_generated - 1)) {
    const bool is_end = !stop.ignore_eos && Contains(end_ids, id);
    if (is_end || request.stop_ids.Contains(id)) {
      return {.finish_reason = FinishReason::kStop, .stop_token_id = id};
    }
  }
  if (num_generated >= request.max_tokens) return {.finish_reason = FinishReason::kLength};
  return {};
}

}  // namespace quire::engine
