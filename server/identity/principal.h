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
  std::string name;  // appears in logs; identifies a request together with the request id
  // The callers of one tenant share cached prefixes and limits. If callers are not authenticated,
  // all of them have the tenant "".
  std::string tenant;
  // If true, the caller may drain the server, flush the prefix cache, see statistics, use
  // reflection and abort any request.
  bool is_operator = false;
  // If true, a request's sched.tenant may name any tenant. Otherwise it names a subdivision of the
  // caller's own tenant. Each subdivision has its own cached prefixes.
  bool any_tenant = false;
  int32_t max_priority = 0;  // largest sched.priority
  engine::TenantLimits limits;
};

}  // namespace quire::server
