#pragma once

// Checks the rights that a request claims, and gives the request the rights of its caller.

#include "absl/status/status.h"

#include "engine/request/request.h"
#include "server/identity/principal.h"

namespace quire::server {

// Sets the owner, limits and tenant of `params` to the caller's. If the request names a tenant,
// that name is stored in params.cache.part, as a part of the caller's tenant. But if the caller has
// the role any-tenant, the named tenant replaces the caller's tenant. Returns PermissionDenied for
// a priority above the caller's largest.
absl::Status Grant(const Principal& caller, engine::GenerateParams& params);

}  // namespace quire::server
