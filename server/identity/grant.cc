#include "server/identity/grant.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace quire::server {
absl::Status Grant(const Principal& caller, engine::GenerateParams& params) {
  // A priority above kTopPriority is left to the engine, which refuses it as an invalid argument.
  if (params.sched.priority <= kTopPriority && params.sched.priority > caller.max_priority) {
    return absl::PermissionDeniedError(
        absl::StrFormat("sched.priority: want at most %d, the caller's max_priority, got %d",
                        caller.max_priority, params.sched.priority));
  }
  params.owner = caller.name;
  params.limits = caller.limits;
  if (!caller.any_tenant) {
    params.cache.part = std::exchange(params.sched.tenant, caller.tenant);
  } else if (params.sched.tenant.empty()) {
    params.sched.tenant = caller.tenant;
  }
  return absl::OkStatus();
}

absl::Status CheckOperator(bool trusts_place, const Principal& caller) {
  if (trusts_place || caller.is_operator) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "want the role operator: write roles=operator on the caller's line of --auth_token_file, or "
      "ask at a --control_listen on loopback");
}

}  // namespace quire::server
