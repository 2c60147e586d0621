#pragma once

// Counts how much each tenant has been served, so that the tenant served least starts first. Also
// counts the places of max_num_seqs that each tenant's running sequences take.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/strings.h"

namespace quire::engine {

// Implements virtual token counters (VTC, arXiv:2401.00588). When an idle tenant returns, its
// counter is raised to at least the counter of the least served active tenant, so that a tenant
// gains nothing by idling. When there are more than kMaxIdle idle tenants, the counters of the
// least served idle tenants are forgotten. Not thread-safe.
class TenantShares {
 public:
  using TenantId = int32_t;
  // The costs of a token of a prompt and of a generated token. The values are those of the paper.
  static constexpr int64_t kPrefillCost = 1;
  static constexpr int64_t kDecodeCost = 2;
  static constexpr size_t kMaxIdle = 1024;

  // Adds a request of `tenant` and sets the tenant's share to `share`, which is at least 1. Returns
  // the tenant's id. The id stays valid until Leave has been called once for each Enter.
  TenantId Enter(std::string_view tenant, int32_t share = 1);
  void Leave(TenantId id);

  void Charge(TenantId id, int64_t cost) {
    tenants_[id].served += static_cast<double>(cost) / tenants_[id].share;
  }
  // Returns the tenant's counter. Each charge adds its cost divided by the tenant's share.
  double served(TenantId id) const { return tenants_[id].served; }

  // Returns the tenant's part of what all tenants with requests share: at most 1, for all of it.
  double part(TenantId id) const {
    return static_cast<double>(tenants_[id].share) / static_cast<double>(sum_of_shares_);
  }
  int32_t share(TenantId id) const { return tenants_[id].share; }

  void AddPlaces(TenantId id, int32_t num) { tenants_[id].num_places += num; }
  int32_t num_places(TenantId id) const { return tenants_[id].num_places; }

  int64_t num_active() const { return static_cast<int64_t>(by_name_.size() - num_idle_); }
  int64_t num_known() const { return static_cast<int64_t>(by_name_.size()); }

 private:
  struct Tenant {
    std::string name;
    double served = 0;
    int32_t share = 1;
    int32_t num_places = 0;
    int64_t num_requests = 0;
  };
  // Returns the least `served` of the tenants with requests. If no tenant has requests, returns
  // `served` of the last tenant that had some.
  double LeastServed() const;
  void Forget();

  std::unordered_map<std::string, TenantId, base::StringHash, std::equal_to<>> by_name_;
  std::vector<Tenant> tenants_;
  std::vector<TenantId> unused_;
  size_t num_idle_ = 0;
  int64_t sum_of_shares_ = 0;  // of tenants with requests
  double last_served_ = 0;
};

}  // namespace quire::engine
