#pragma once

// The limits on one tenant's use of what all tenants share: the queue, the places of running
// sequences, and the steps.

#include <cstdint>

namespace quire::engine {

struct TenantLimits {
  int32_t max_waiting = 0;  // requests that have not run yet; 0: no limit but the queue's
  int32_t max_running = 0;  // running sequences, and samples of one request; 0: no limit
  int32_t share = 1;        // weight among waiting tenants for steps; 1..100
  // If true, a request of the tenant is accepted only while the number of the tenant's waiting
  // requests is below `share` times the number of free places of the queue. So one tenant alone
  // leaves about 1 / (share + 1) of the queue free.
  bool leaves_room = false;
};

}  // namespace quire::engine
