#pragma once

// A caller and its rights.

#include <cstdint>
#include <string>

#include "engine/request/request.h"

namespace quire::server {

// The largest priority that any caller may have.
inline constexpr int32_t kTopPriority = 100;

// Plain data, constant once made.
struct Principal {
  std::string name;          // appears in logs; identifies a request together with the request id
  std::string tenant;        // its callers share prefixes, seats and queue; "": of all callers
  bool is_operator = false;  // may drain, see statistics and reflection, abort others' requests
  bool any_tenant = false;   // sched.tenant names any tenant, not a part of `tenant`
  int32_t max_priority = 0;  // largest sched.priority
  engine::TenantLimits limits;
};

}  // namespace quire::server
