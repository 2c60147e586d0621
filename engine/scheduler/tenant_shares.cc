#include "engine/scheduler/tenant_shares.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace quire::engine {

TenantShares::TenantId TenantShares::Enter(std::string_view name, int32_t share) {
  QUIRE_CHECK(share >= 1) << "share " << share;
  const double least = LeastServed();
  auto it = by_name_.find(name);
  if (it == by_name_.end()) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<TenantId>(tenants_.size()));
      tenants_.emplace_back();
    }
    const TenantId id = unused_.back();
    unused_.pop_back();
    tenants_[id] = {.name = std::string(name)};
    it = by_name_.emplace(std::string(name), id).first;
    ++num_idle_;
  }
  Tenant& tenant = tenants_[it->second];
  if (tenant.num_requests > 0) sum_of_shares_ -= tenant.share;
  sum_of_shares_ += share;
  tenant.share = share;
  if (tenant.num_requests++ == 0) {
    --num_idle_;
    tenant.served = std::max(tenant.served, least);
  }
  return it->second;
}

void TenantShares::Leave(TenantId id) {
  Tenant& tenant = tenants_[id];
  QUIRE_CHECK(tenant.num_requests > 0) << "tenant " << id;
  if (--tenant.num_requests > 0) return;
  ++num_idle_;
  sum_of_shares_ -= tenant.share;
  last_served_ = tenant.served;
  if (num_idle_ > kMaxIdle) Forget();
}

double TenantShares::LeastServed() const {
  double least = std::numeric_limits<double>::infinity();
  for (const Tenant& tenant : tenants_) {
    if (tenant.num_requests > 0) least = std::min(least, tenant.served);
  }
  return least == std::numeric_limits<double>::infinity() ? last_served_ : least;
}

// Forgets half of the idle tenants: those with the lowest counters. Little is lost, because Enter()
// raises a low counter anyway when the tenant returns.
void TenantShares::Forget() {
  std::vector<TenantId> idle;
  for (const auto& [name, id] : by_name_) {
    if (tenants_[id].num_requests == 0) idle.push_back(id);
  }
  std::ranges::sort(idle, {}, [&](TenantId id) { return tenants_[id].served; });
  idle.resize(idle.size() / 2);
  for (const TenantId id : idle) {
    by_name_.erase(tenants_[id].name);
    tenants_[id] = {};
    unused_.push_back(id);
  }
  num_idle_ -= idle.size();
}

}  // namespace quire::engine
