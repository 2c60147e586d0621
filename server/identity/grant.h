#pragma once

// What a request may claim, and what it gets without asking.

#include "absl/status/status.h"

#include "engine/request/request.h"
#include "server/identity/principal.h"

namespace quire::server {

// Makes `params` the caller's: owner, limits, and its tenant; the tenant that the request named is
// a part of that one, or, for one with the role any-tenant, the tenant itself. PermissionDenied for
// a priority above the caller's.
absl::Status Grant(const Principal& caller, engine::GenerateParams& params);

}  // namespace quire::server
