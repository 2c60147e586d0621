#pragma once

// Bounds the memory of calls that the queue does not count: their requests, and the answers that
// their clients do not read.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "base/mutex.h"
#include "engine/request/shared_limit.h"
#include "engine/request/tenant_limits.h"

namespace quire::server {

// Counts the bytes that calls hold, by tenant. Where there are several tenants, one leaves room to
// the others (engine::SharedLimit). Thread-safe.
class HeldBytes {
 public:
  explicit HeldBytes(int64_t most) : limit_(most) {}

  // What one call holds. Gives it back when destroyed.
  class Share {
   public:
    // Borrows `held`.
    Share(HeldBytes& held, std::string_view tenant, const engine::TenantLimits& limits)
        : held_(held), tenant_(tenant), limits_(limits) {}
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Adds `count` bytes. Returns ResourceExhausted if the tenant may not hold so many more.
    absl::Status Take(int64_t count);

   private:
    HeldBytes& held_;
    const std::string tenant_;
    const engine::TenantLimits limits_;
    int64_t count_ = 0;
  };

 private:
  base::Mutex mu_;
  engine::SharedLimit limit_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server
