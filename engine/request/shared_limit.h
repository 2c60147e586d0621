#pragma once

// A bound on something that all tenants share, such as the number of sessions.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "engine/request/tenant_limits.h"

namespace quire::engine {

// Counts how many each tenant has. With TenantLimits::has_others, a tenant may take only as many as
// leave room to the others, by the rule of the queue (MostMore), so that none can take all. Not
// thread-safe.
class SharedLimit {
 public:
  // `most`: of all tenants together.
  explicit SharedLimit(int64_t most) : most_(most) {}

  // Returns how many more the tenant may take now.
  int64_t Room(std::string_view tenant, const TenantLimits& limits) const;
  // Returns ResourceExhausted if the tenant may not take `count` more. `what` begins the message.
  absl::Status Check(std::string_view what, std::string_view tenant, const TenantLimits& limits,
                     int64_t count) const;
  // Counts, beyond any limit.
  void Take(std::string_view tenant, int64_t count);
  void GiveBack(std::string_view tenant, int64_t count);

  int64_t most() const { return most_; }
  int64_t total() const { return total_; }
  int64_t of(std::string_view tenant) const;

 private:
  const int64_t most_;
  int64_t total_ = 0;
  std::map<std::string, int64_t, std::less<>> by_tenant_;  // those that have some
};

}  // namespace quire::engine
