#include "engine/admission/tenant_meters.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace quire::engine {
namespace {

TenantUsage UsageOf(std::string_view name, const TenantLimits& limits, const TenantMeter& meter,
                    absl::Time now) {
  return {.name = std::string(name),
          .limits = limits,
          .counts = meter.counts,
          .num_requests = meter.num_requests,
          .requests_left = meter.requests.Left(limits.requests_per_minute, now),
          .tokens_left = meter.tokens.Left(limits.tokens_per_minute, now)};
}

}  // namespace

TenantCharge::TenantCharge(TenantCharge&& other) noexcept
    : meters_(std::exchange(other.meters_, nullptr)),
      tenant_(other.tenant_),
      estimate_(other.estimate_) {}

TenantCharge& TenantCharge::operator=(TenantCharge&& other) noexcept {
  if (this != &other) {
    Settle(0);
    meters_ = std::exchange(other.meters_, nullptr);
    tenant_ = other.tenant_;
    estimate_ = other.estimate_;
  }
  return *this;
}

void TenantCharge::Settle(int64_t num_tokens) {
  if (TenantMeters* meters = std::exchange(meters_, nullptr)) {
    meters->Settle(tenant_, estimate_, num_tokens);
  }
}

TenantMeters::Meters::iterator TenantMeters::FindOrAdd(std::string_view tenant) {
  if (const auto it = meters_.find(tenant); it != meters_.end()) return it;
  const auto it = meters_.emplace(std::string(tenant), TenantMeter{}).first;
  if (lasting_.size() < kMostLasting) {
    it->second.is_lasting = true;
    lasting_.push_back(it);
  } else {
    ++num_idle_;
  }
  return it;
}

absl::StatusOr<TenantCharge> TenantMeters::Charge(std::string_view tenant,
                                                  const TenantLimits& limits, int64_t num_tokens,
                                                  absl::Time now) {
  base::MutexLock lock(mu_);
  const auto it = FindOrAdd(tenant);
  TenantMeter& meter = it->second;
  meter.limits = limits;
  absl::Status status =
      meter.requests.Check("requests_per_minute", limits.requests_per_minute, now);
  if (status.ok()) status = meter.tokens.Check("tokens_per_minute", limits.tokens_per_minute, now);
  if (!status.ok()) {
    ++meter.counts.refused;
    NoteIdle(meter);
    return status;
  }
  meter.requests.Take(limits.requests_per_minute, 1, now);
  meter.tokens.Take(limits.tokens_per_minute, static_cast<double>(num_tokens), now);
  ++meter.counts.requests;
  if (meter.num_requests++ == 0 && !meter.is_lasting) --num_idle_;
  return TenantCharge(this, it, num_tokens);
}

void TenantMeters::Settle(Meters::iterator tenant, int64_t estimate, int64_t num_tokens) {
  base::MutexLock lock(mu_);
  TenantMeter& meter = tenant->second;
  QUIRE_CHECK(meter.num_requests > 0) << "tenant " << tenant->first;
  meter.tokens.GiveBack(static_cast<double>(estimate - num_tokens));
  meter.counts.served_tokens += static_cast<uint64_t>(num_tokens);
  if (--meter.num_requests > 0) return;
  if (!meter.is_lasting) ++num_idle_;
  NoteIdle(meter);
}

// Forgets half of the idle tenants when there are too many.
void TenantMeters::NoteIdle(const TenantMeter& meter) {
  if (meter.is_lasting || num_idle_ <= kMostIdle) return;
  size_t seen = 0;
  for (auto it = meters_.begin(); it != meters_.end();) {
    const bool is_idle = !it->second.is_lasting && it->second.num_requests == 0;
    if (is_idle && seen++ % 2 == 0) {
      forgotten_ += it->second.counts;
      it = meters_.erase(it);
      --num_idle_;
    } else {
      ++it;
    }
  }
}

TenantUsage TenantMeters::Get(std::string_view tenant, const TenantLimits& limits,
                              absl::Time now) const {
  base::MutexLock lock(mu_);
  const auto it = meters_.find(tenant);
  return UsageOf(tenant, limits, it == meters_.end() ? TenantMeter{} : it->second, now);
}

TenantUsages TenantMeters::GetAll(absl::Time now) const {
  base::MutexLock lock(mu_);
  TenantUsages all{.num_lasting = lasting_.size(), .forgotten = forgotten_};
  for (const auto it : lasting_) {
    all.tenants.push_back(UsageOf(it->first, it->second.limits, it->second, now));
  }
  for (const auto& [name, meter] : meters_) {
    if (!meter.is_lasting) all.tenants.push_back(UsageOf(name, meter.limits, meter, now));
  }
  return all;
}

}  // namespace quire::engine
