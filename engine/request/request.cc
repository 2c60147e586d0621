#include "engine/request/request.h"

namespace quire::engine {

absl::Status CancelledStatus() { return absl::CancelledError("the request was cancelled"); }

absl::Status PastDeadlineStatus() {
  return absl::DeadlineExceededError("the request's deadline has passed");
}

absl::Status StillWanted(const Request& request, absl::Time now) {
  if (request.cancelled.load(std::memory_order_acquire)) return CancelledStatus();
  return request.deadline <= now ? PastDeadlineStatus() : absl::OkStatus();
}

}  // namespace quire::engine
