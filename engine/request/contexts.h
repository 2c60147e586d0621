#pragma once

// What named prefixes and sessions, the contexts that an engine keeps, have in common for their
// users.

#include <cstddef>
#include <string>

#include "engine/request/tenant_limits.h"

namespace quire::engine {

// Who asks. A context belongs to a tenant.
struct ContextCaller {
  std::string tenant;
  bool is_operator = false;  // has rights on the contexts of all tenants
  TenantLimits limits;
};

inline constexpr size_t kMostDisplayNameBytes = 128;
inline constexpr size_t kMostRequestIdBytes = 36;
inline constexpr size_t kMostSaltBytes = 256;  // as CacheParams::salt
inline constexpr size_t kMostAllowedTenants = 256;

}  // namespace quire::engine
