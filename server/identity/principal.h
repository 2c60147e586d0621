#pragma once

// Who calls, and what that allows.

#include <cstdint>
#include <string>

#include "engine/request/request.h"

namespace quire::server {

// Nobody's may be larger.
inline constexpr int32_t kTopPriority = 100;

// Plain data; constant once made.
struct Principal {
  std::string name;          // in logs; request ids are known by it and the id together
  std::string tenant;        // with whom it shares prefixes, seats and the queue; "" for everybody
  bool is_operator = false;  // may drain, see statistics and reflection, abort others' requests
  bool any_tenant = false;   // sched.tenant names the tenant, not a part of its own
  int32_t max_priority = 0;  // largest sched.priority
  engine::TenantLimits limits;
};

}  // namespace quire::server
