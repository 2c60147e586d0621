#include "engine/request/shared_limit.h"

#include <algorithm>

#include "absl/strings/str_format.h"

#include "base/check.h"

namespace quire::engine {

int64_t SharedLimit::Room(std::string_view tenant, const TenantLimits& limits) const {
  const int64_t free = std::max<int64_t>(0, most_ - total_);
  return limits.has_others ? MostMore(of(tenant), free, limits.share) : free;
}

absl::Status SharedLimit::Check(std::string_view what, std::string_view tenant,
                                const TenantLimits& limits, int64_t count) const {
  const int64_t room = Room(tenant, limits);
  if (count <= room) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s: want %d more, the tenant has %d and may take %d now; all tenants together have %d of at "
      "most %d: end some, or try later",
      what, count, of(tenant), room, total_, most_));
}

void SharedLimit::Take(std::string_view tenant, int64_t count) {
  if (count == 0) return;
  total_ += count;
  const auto it = by_tenant_.find(tenant);
  if (it == by_tenant_.end()) {
    by_tenant_.emplace(tenant, count);
  } else {
    it->second += count;
  }
}

void SharedLimit::GiveBack(std::string_view tenant, int64_t count) {
  if (count == 0) return;
  const auto it = by_tenant_.find(tenant);
  QUIRE_CHECK(it != by_tenant_.end() && it->second >= count)
      << count << " given back of " << of(tenant);
  total_ -= count;
  it->second -= count;
  if (it->second == 0) by_tenant_.erase(it);
}

int64_t SharedLimit::of(std::string_view tenant) const {
  const auto it = by_tenant_.find(tenant);
  return it == by_tenant_.end() ? 0 : it->second;
}

}  // namespace quire::engine
