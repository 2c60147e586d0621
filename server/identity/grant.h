#pragma once

// Checks the rights that a request claims, and adds those that its caller has.

#include "absl/status/status.h"

#include "engine/request/request.h"
#include "server/identity/principal.h"

namespace quire::server {

// Sets the owner, limits and tenant of `params` to the caller's. A tenant that the request names is
// a part of the caller's tenant; only for a caller with the role any-tenant is it the tenant
// itself. PermissionDenied for a priority above the caller's.
absl::Status Grant(const Principal& caller, engine::GenerateParams& params);

}  // namespace quire::server
