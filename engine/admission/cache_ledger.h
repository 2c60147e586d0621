#pragma once

// Keeps the promises of the KV cache: what named prefixes pin, and what running requests may need.

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "engine/request/shared_limit.h"
#include "engine/request/tenant_limits.h"

namespace quire::engine {

class CacheLedger;

// The blocks that one request may need. Its destructor gives them back. Move-only.
class CacheLease {
 public:
  CacheLease() = default;
  CacheLease(CacheLease&& other) noexcept
      : ledger_(std::exchange(other.ledger_, nullptr)), need_(other.need_) {}
  CacheLease& operator=(CacheLease&& other) noexcept;
  ~CacheLease() { Release(); }

 private:
  friend class CacheLedger;
  CacheLease(CacheLedger* ledger, std::multiset<int64_t>::iterator need)
      : ledger_(ledger), need_(need) {}
  void Release();

  CacheLedger* ledger_ = nullptr;            // not owned
  std::multiset<int64_t>::iterator need_{};  // valid while ledger_ is not null
};

// The size of one KV group. See BlockManager for groups and windows.
struct LedgerGroup {
  int64_t num_blocks = 0;
  int64_t for_one = 0;  // of a window: the most blocks that one sequence needs; else 0

  // Returns how many of the blocks may be pinned. `max_pinned_share`: 0..1.
  int64_t MostPinned(double max_pinned_share) const {
    return std::min(static_cast<int64_t>(max_pinned_share * num_blocks), num_blocks - for_one);
  }
};

// A request is admitted only if all blocks that are not pinned suffice for it, and blocks are
// pinned only if the others suffice for the largest admitted request. So pins are never larger than
// the memory, and a request that was admitted can always be brought to its end: alone, at the
// worst. Pinned blocks count from the moment when their computation is asked for until the step
// thread has given them back. Must outlive the leases. Thread-safe.
class CacheLedger {
 public:
  // `max_pinned_share`: the part of each group's blocks that may be pinned, 0..1.
  CacheLedger(std::vector<LedgerGroup> groups, double max_pinned_share);

  // Counts blocks as pinned for the tenant, by KV group. InvalidArgument: they are more than it may
  // ever pin. ResourceExhausted: they are too many now, for all or by SharedLimit. `what` begins
  // the message.
  absl::Status Pin(std::string_view what, std::string_view tenant, const TenantLimits& limits,
                   std::span<const int64_t> blocks);
  void Unpin(std::string_view tenant, std::span<const int64_t> blocks);

  // Admits a request that needs `need` blocks of group 0 at once, `shared` of which are those of
  // its named prefix, which is there. ResourceExhausted: pins leave too few.
  absl::StatusOr<CacheLease> Admit(int64_t need, int64_t shared);

  int64_t num_pinned() const;  // of group 0

 private:
  friend class CacheLease;

  const std::vector<LedgerGroup> groups_;
  const double max_pinned_share_;

  mutable base::Mutex mu_;
  std::vector<SharedLimit> pinned_ ABSL_GUARDED_BY(mu_);  // by KV group
  // The needs of the live requests. A request counts with all its blocks, those of its prefix
  // included, since the prefix may end before it.
  std::multiset<int64_t> needs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::engine
