// The functions of PrefixRegistry for prefixes on disk: what is written, and what is known again
// after a restart.

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/sharing/prefix_registry.h"

namespace quire::engine {

void PrefixRegistry::Restore() {
  base::MutexLock lock(mu_);
  const absl::Time wall = clock_.Date();
  table_.set_next_pin(log_->next_pin());
  for (SavedPrefix& saved : log_->TakeSaved()) {
    if (saved.end <= wall) {
      ended_.insert(saved.pin);
      continue;
    }
    const auto record = std::make_shared<PrefixRecord>();
    record->pin_id = saved.pin;
    record->name = std::move(saved.name);
    record->state = PrefixState::kCold;
    record->tenant = std::move(saved.tenant);
    record->salt = std::move(saved.salt);
    record->display_name = std::move(saved.display_name);
    record->allowed_tenants = std::move(saved.allowed_tenants);
    record->create_wall = saved.create_time;
    record->update_wall = saved.update_time;
    record->version = saved.version;
    record->expires = clock_.FromDate(saved.end);
    record->expires_wall = saved.end;
    record->ttl = saved.ttl;
    record->refresh_on_hit = saved.refresh_on_hit;
    record->saved_end = record->expires;
    record->content = std::move(saved.content);
    record->content_sha256 = ContentDigest(config_.model_digest, record->content->ids);
    record->request_id = std::move(saved.request_id);
    record->request_digest = std::move(saved.request_digest);
    table_.Add(record, std::min(saved.create_time + kRequestIdKept - wall, kRequestIdKept));
    SetTimer(*record);
  }
  if (table_.records().empty()) return;
  base::Log(base::LogLevel::kInfo, "engine", "named prefixes are known from an earlier run",
            {{"prefixes", std::ssize(table_.records())}});
}

void PrefixRegistry::NoteChange(const PrefixRecord& record) {
  if (log_ == nullptr) return;
  (record.is_gone ? ended_ : changed_).insert(record.pin_id);
  if (config_.on_earlier_timer) config_.on_earlier_timer();
}

absl::Time PrefixRegistry::NextWrite() const {
  if (!computed_.empty()) return absl::InfinitePast();
  if (!ended_.empty()) return log_again_;
  return changed_.empty() ? absl::InfiniteFuture() : std::max(log_again_, grow_again_);
}

SavedPrefix PrefixRegistry::SavedOf(const PrefixRecord& record) const {
  return {.pin = record.pin_id,
          .name = record.name,
          .tenant = record.tenant,
          .salt = record.salt,
          .display_name = record.display_name,
          .allowed_tenants = record.allowed_tenants,
          .create_time = record.create_wall,
          .update_time = record.update_wall,
          .end = record.ToWall(record.End()),
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
  std::set<uint64_t> changed, ended;
  {
    base::MutexLock lock(mu_);
    if (NextWrite() > clock_.Now()) return;
    computed.swap(computed_);
    changed.swap(changed_);
    ended.swap(ended_);
    // What was never written is not changed, and does not end, on the disk.
    std::erase_if(ended, [&](uint64_t pin) { return !log_->Has(pin); });
    for (const uint64_t pin : changed) {
      const RecordPtr record = table_.FindPin(pin);
      if (!log_->Has(pin) || record == nullptr) continue;
      if (record->state == PrefixState::kFailed) {
        ended.insert(pin);
      } else {
        record->saved_end = record->End();
        of_changed.push_back(SavedOf(*record));
      }
    }
    for (const RecordPtr& record : computed) {
      record->saved_end = record->End();
      of_computed.push_back(record->is_gone ? std::nullopt : std::optional(SavedOf(*record)));
    }
  }
  const bool was_broken = log_->is_broken();
  absl::Status disk = was_broken ? RewriteLog() : absl::OkStatus();
  // Ends have space on a full disk, and so come first.
  for (const uint64_t pin : ended) {
    if (disk.ok()) disk = log_->Remove(pin);
  }
  absl::Status changes = disk;
  for (const SavedPrefix& prefix : of_changed) {
    if (changes.ok()) changes = log_->Save(prefix);
  }
  std::vector<absl::Status> saved;
  for (const std::optional<SavedPrefix>& prefix : of_computed) {
    saved.push_back(disk.ok() && prefix ? log_->Save(*prefix) : disk);
  }
  // A prefix that is larger than its limit, or than the disk, is refused without harm to the log.
  if (disk.ok()) disk = log_->Sync();
  // The log may have been removed while it was used. A new one has all that was written.
  if (!disk.ok() && !was_broken && RewriteLog().ok()) disk = changes = absl::OkStatus();
  if (!disk.ok() || !changes.ok()) {
    base::Log(base::LogLevel::kError, "engine", "the log of named prefixes cannot be written",
              {{"status", (disk.ok() ? changes : disk).ToString()}});
    base::MutexLock lock(mu_);
    changed_.merge(changed);
    (disk.ok() ? grow_again_ : log_again_) = clock_.Now() + kLogPause;
    if (!disk.ok()) ended_.merge(ended);
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
    for (const auto& [pin, record] : table_.records()) {
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
