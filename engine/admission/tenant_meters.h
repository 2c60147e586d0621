#pragma once

// Counts what each tenant uses, and holds tenants to their rate limits.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "engine/admission/rate_bucket.h"
#include "engine/request/tenant_limits.h"
#include "engine/request/tenant_usage.h"

namespace quire::engine {

class TenantMeters;

struct TenantMeter {
  TenantLimits limits;  // those of the latest request
  TenantCounts counts;
  RateBucket requests;
  RateBucket tokens;
  int64_t num_requests = 0;  // accepted, and not ended
  bool is_lasting = false;
};

// The charge of one request, taken when it was submitted. Settle replaces the estimate of its
// tokens by their number. The tokens of a request that is never settled are given back. Move-only.
// An empty charge does nothing.
class TenantCharge {
 public:
  TenantCharge() = default;
  TenantCharge(TenantCharge&& other) noexcept;
  TenantCharge& operator=(TenantCharge&& other) noexcept;
  ~TenantCharge() { Settle(0); }

  void Settle(int64_t num_tokens);  // a second call does nothing

 private:
  friend class TenantMeters;
  using Meters = std::map<std::string, TenantMeter, std::less<>>;
  TenantCharge(TenantMeters* meters, Meters::iterator tenant, int64_t estimate)
      : meters_(meters), tenant_(tenant), estimate_(estimate) {}

  TenantMeters* meters_ = nullptr;  // not owned
  Meters::iterator tenant_;         // in the map of meters_; valid while meters_ is not null
  int64_t estimate_ = 0;
};

// Every request takes one from the tenant's bucket of requests, also a request that is refused
// later. Tokens are taken when the request is submitted, by an estimate, and corrected when the
// request has ended. So the bucket of tokens may fall below zero, and requests are refused until it
// has filled again. Tokens that come from the prefix cache do not count.
//
// The first kMostLasting tenants are kept for ever, so that their counts can be shown without a
// gap. Of the other tenants, about kMostIdle are kept while they have no requests.
//
// Times are those of the engine's clock. Must outlive the charges. Thread-safe.
class TenantMeters {
 public:
  static constexpr size_t kMostLasting = 64;
  static constexpr size_t kMostIdle = 1024;

  // Charges one request and about `num_tokens` tokens. If one of the buckets is empty, returns
  // ResourceExhausted with the time after which it is not (RetryAfter).
  absl::StatusOr<TenantCharge> Charge(std::string_view tenant, const TenantLimits& limits,
                                      int64_t num_tokens, absl::Time now);

  // Returns the use of a tenant, which may be unknown so far.
  TenantUsage Get(std::string_view tenant, const TenantLimits& limits, absl::Time now) const;
  TenantUsages GetAll(absl::Time now) const;

 private:
  friend class TenantCharge;
  using Meters = TenantCharge::Meters;

  Meters::iterator FindOrAdd(std::string_view tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Settle(Meters::iterator tenant, int64_t estimate, int64_t num_tokens);
  void NoteIdle(const TenantMeter& meter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable base::Mutex mu_;
  Meters meters_ ABSL_GUARDED_BY(mu_);
  std::vector<Meters::const_iterator> lasting_
      ABSL_GUARDED_BY(mu_);                   // in the order of their first requests
  size_t num_idle_ ABSL_GUARDED_BY(mu_) = 0;  // of the tenants that are not lasting
  TenantCounts forgotten_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::engine
