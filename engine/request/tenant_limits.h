#pragma once

// What one tenant may take of what all share.

#include <cstdint>

namespace quire::engine {

struct TenantLimits {
  int32_t max_waiting = 0;  // requests that have not run yet; 0: as many as there is room for
  int32_t max_running = 0;  // sequences that run at once, and samples of one request; 0: likewise
  int32_t share = 1;        // of the steps, among tenants that wait; 1..100
  // No more of its requests wait than `share` times the free places of the queue, so that however
  // many tenants fill it, the next one finds a place.
  bool leaves_room = false;
};

}  // namespace quire::engine
