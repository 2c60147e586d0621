#include "engine/admission/cache_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/check.h"
#include "base/status_macros.h"

namespace quire::engine {

CacheLease& CacheLease::operator=(CacheLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  need_ = other.need_;
  return *this;
}

void CacheLease::Release() {
  CacheLedger* const ledger = std::exchange(ledger_, nullptr);
  if (ledger == nullptr) return;
  base::MutexLock lock(ledger->mu_);
  ledger->needs_.erase(need_);
}

CacheLedger::CacheLedger(std::vector<LedgerGroup> groups, double max_pinned_share)
    : groups_(std::move(groups)), max_pinned_share_(max_pinned_share) {
  for (const LedgerGroup& group : groups_) pinned_.emplace_back(group.MostPinned(max_pinned_share));
}

absl::Status CacheLedger::Pin(std::string_view what, std::string_view tenant,
                              const TenantLimits& limits, std::span<const int64_t> blocks) {
  QUIRE_CHECK(blocks.size() == groups_.size()) << blocks.size() << " KV groups";
  base::MutexLock lock(mu_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const LedgerGroup& group = groups_[g];
    const int64_t most = pinned_[g].most();
    const int64_t ever = limits.has_others ? MostMore(0, most, limits.share) : most;
    const char* const of = g == 0 ? "blocks" : "blocks of a window";
    if (blocks[g] > ever) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: want at most %d %s (max_pinned_share %g of %d%s), got %d", what,
                          ever, of, max_pinned_share_, group.num_blocks,
                          ever < most ? ", less what is for other tenants" : "", blocks[g]));
    }
    if (pinned_[g].total() + blocks[g] > most) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%s: %d %s wanted, %d are pinned, and %d may be (max_pinned_share %g of %d)", what,
          blocks[g], of, pinned_[g].total(), most, max_pinned_share_, group.num_blocks));
    }
    RETURN_IF_ERROR(
        pinned_[g].Check(absl::StrCat(std::string(what), ": ", of), tenant, limits, blocks[g]));
  }
  const int64_t largest = needs_.empty() ? 0 : *needs_.rbegin();
  const int64_t left = groups_[0].num_blocks - pinned_[0].total() - blocks[0];
  if (largest > left) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s: %d blocks wanted, %d are pinned, and a running request may need %d of %d", what,
        blocks[0], pinned_[0].total(), largest, groups_[0].num_blocks));
  }
  for (size_t g = 0; g < groups_.size(); ++g) pinned_[g].Take(tenant, blocks[g]);
  return absl::OkStatus();
}

void CacheLedger::Unpin(std::string_view tenant, std::span<const int64_t> blocks) {
  base::MutexLock lock(mu_);
  for (size_t g = 0; g < groups_.size(); ++g) pinned_[g].GiveBack(tenant, blocks[g]);
}

absl::StatusOr<CacheLease> CacheLedger::Admit(int64_t need, int64_t shared) {
  base::MutexLock lock(mu_);
  if (need - shared > groups_[0].num_blocks - pinned_[0].total()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the request may need %d blocks of the KV cache, but named prefixes hold %d of %d", need,
        pinned_[0].total(), groups_[0].num_blocks));
  }
  return CacheLease(this, needs_.insert(need));
}

int64_t CacheLedger::num_pinned() const {
  base::MutexLock lock(mu_);
  return pinned_[0].total();
}

}  // namespace quire::engine
