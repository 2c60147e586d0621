#pragma once

// Checks the rights that a request claims, and gives the request the rights of its caller.

#include "absl/status/status.h"

#include "engine/request/request.h"
#include "server/identity/principal.h"

namespace quire::server {

// Sets the owner and limits of `params` to the caller's. If the caller has the role any-tenant, the
// request may name any tenant; the default is the caller's tenant. For any other caller, the tenant
// is the caller's, and a tenant that the request names becomes params.cache.part, a part of the
// caller's tenant. Returns PermissionDenied for a priority above the caller's max_priority, unless
// no caller may have it: the engine refuses that one.
absl::Status Grant(const Principal& caller, engine::GenerateParams& params);

// Returns PERMISSION_DENIED unless `trusts_place` is true, which makes an operator of every caller,
// or the caller has the operator role.
absl::Status CheckOperator(bool trusts_place, const Principal& caller);

}  // namespace quire::server
