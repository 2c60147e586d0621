#pragma once

// A caller, and the rights that it has.

#include <cstdint>
#include <string>

#include "engine/request/request.h"

namespace quire::server {

// The largest priority that any caller may have.
inline constexpr int32_t kTopPriority = 100;

// Plain data, constant once made.
struct Principal {
  std::string name;          // in logs; with a request id it identifies a request
  std::string tenant;        // shares prefixes, seats and queue among its callers; "": all callers
  bool is_operator = false;  // may drain, see statistics and reflection, abort others' requests
  bool any_tenant = false;   // sched.tenant names any tenant, not a part of the caller's own
  int32_t max_priority = 0;  // largest sched.priority
  engine::TenantLimits limits;
};

}  // namespace quire::server
