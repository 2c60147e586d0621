#pragma once

// Named prefixes and sessions are the contexts that an engine keeps. This file has who asks for
// them, and the limits of the fields that both have.

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
