// The functions of PrefixRegistry for prefixes on disk: what is written, and what is known again
// after a restart.

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/sharing/prefix_registry.h"

namespace quire::engine {

void PrefixRegistry::Restore() {
  base::MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  const absl::Time wall = absl::Now();
  next_pin_ = log_->next_pin();
  for (SavedPrefix& saved : log_->TakeSaved()) {
    if (saved.end <= wall) {
      changed_.insert(saved.pin);
      continue;
    }
    const auto record = std::make_shared<PrefixRecord>();
    record->pin = saved.pin;
    record->name = std::move(saved.name);
    record->state = PrefixState::kCold;
    record->tenant = std::move(saved.tenant);
    record->salt = std::move(saved.salt);
    record->display_name = std::move(saved.display_name);
    record->allowed_tenants = std::move(saved.allowed_tenants);
    record->create_wall = saved.create_time;
    record->update_wall = saved.update_time;
    record->version = saved.version;
    record->expires = now + (saved.end - wall);
    record->ttl = saved.ttl;
    record->refresh_on_hit = saved.refresh_on_hit;
    record->saved_end = record->expires;
    record->content = std::move(saved.content);
    record->content_sha256 = ContentDigest(config_.model_digest, record->content->ids);
    record->request_id = std::move(saved.request_id);
    record->request_digest = std::move(saved.request_digest);
    records_.emplace(record->pin, record);
    by_name_.emplace(record->name, record);
    SetTimer(*record);
    const absl::Duration left = saved.create_time + kRequestIdKept - wall;
    if (!record->request_id.empty() && left > absl::ZeroDuration()) {
      const RequestKey key(record->tenant, record->request_id);
      requests_by_age_.emplace_back(now + std::min(left, kRequestIdKept), key);
      requests_[key] = {.pin = record->pin, .digest = record->request_digest};
    }
  }
  if (records_.empty()) return;
  base::Log(base::LogLevel::kInfo, "engine", "named prefixes are known from an earlier run",
            {{"prefixes", std::ssize(records_)}});
}

void PrefixRegistry::NoteChange(const PrefixRecord& record) {
  if (log_ == nullptr) return;
  changed_.insert(record.pin);
  timers_changed_.NotifyAll();
}

bool PrefixRegistry::HasToWrite() const {
  return !computed_.empty() || (!changed_.empty() && clock_.Now() >= log_again_);
}

SavedPrefix PrefixRegistry::SavedOf(const PrefixRecord& record) const {
  return {.pin = record.pin,
          .name = record.name,
          .tenant = record.tenant,
          .salt = record.salt,
          .display_name = record.display_name,
          .allowed_tenants = record.allowed_tenants,
          .create_time = record.create_wall,
          .update_time = record.update_wall,
          .end = absl::Now() + (record.End() - clock_.Now()),
          .ttl = record.ttl,
          .refresh_on_hit = record.refresh_on_hit,
          .version = record.version,
          .request_id = record.request_id,
          .request_digest = record.request_digest,
          .content = record.content};
}

void PrefixRegistry::WriteLog() {
  std::vector<RecordPtr> computed;
  std::vector<std::optional<SavedPrefix>> of_computed;  // nothing: it was deleted meanwhile
  std::vector<SavedPrefix> of_changed;
  std::vector<uint64_t> ended;
  std::set<uint64_t> changed;
  {
    base::MutexLock lock(mu_);
    if (!HasToWrite()) return;
    computed.swap(computed_);
    for (const uint64_t pin : std::exchange(changed_, {})) {
      if (!log_->Has(pin)) continue;  // it was never written
      changed.insert(pin);
      const auto it = records_.find(pin);
      if (it == records_.end() || it->second->state == PrefixState::kFailed) {
        ended.push_back(pin);
      } else {
        it->second->saved_end = it->second->End();
        of_changed.push_back(SavedOf(*it->second));
      }
    }
    for (const RecordPtr& record : computed) {
      record->saved_end = record->End();
      of_computed.push_back(record->is_gone ? std::nullopt : std::optional(SavedOf(*record)));
    }
  }
  absl::Status disk = log_->is_broken() ? RewriteLog() : absl::OkStatus();
  for (const uint64_t pin : ended) {
    if (disk.ok()) disk = log_->Remove(pin);
  }
  for (const SavedPrefix& prefix : of_changed) {
    if (disk.ok()) disk = log_->Save(prefix);
  }
  std::vector<absl::Status> saved;
  for (const std::optional<SavedPrefix>& prefix : of_computed) {
    saved.push_back(disk.ok() && prefix ? log_->Save(*prefix) : disk);
  }
  // A prefix that is larger than its limit is refused without harm to the log.
  if (disk.ok()) disk = log_->Sync();
  if (!disk.ok()) {
    base::Log(base::LogLevel::kError, "engine", "the log of named prefixes cannot be written",
              {{"status", disk.ToString()}});
    base::MutexLock lock(mu_);
    changed_.merge(changed);
    log_again_ = clock_.Now() + kLogPause;
  }
  for (size_t i = 0; i < computed.size(); ++i) {
    Complete(computed[i], saved[i].ok() ? disk : saved[i], /*is_pinned=*/true);
  }
  if (!disk.ok() || !log_->NeedsRewrite()) return;
  if (const absl::Status status = RewriteLog(); !status.ok()) {
    base::Log(base::LogLevel::kWarning, "engine", "the log of named prefixes cannot be shortened",
              {{"status", status.ToString()}});
  }
}

absl::Status PrefixRegistry::RewriteLog() {
  std::vector<SavedPrefix> all;
  {
    base::MutexLock lock(mu_);
    for (const auto& [pin, record] : records_) {
      if (log_->Has(pin) && record->state != PrefixState::kFailed) all.push_back(SavedOf(*record));
    }
  }
  size_t i = 0;
  return log_->Rewrite([&](SavedPrefix& prefix) {
    if (i == all.size()) return false;
    prefix = std::move(all[i++]);
    return true;
  });
}

}  // namespace quire::engine
