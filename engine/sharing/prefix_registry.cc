#include "engine/sharing/prefix_registry.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"

#include "base/resource_name.h"
#include "base/status_macros.h"
#include "engine/sharing/field_checks.h"

namespace quire::engine {
namespace {

// The longest sleep of the housekeeper.
constexpr absl::Duration kLongestWait = absl::Hours(1);

// How often the disk learns of an end that hits have moved. A crash may cost an eighth of the ttl.
constexpr int64_t kNotesPerTtl = 8;
constexpr absl::Duration kLeastNotePause = absl::Seconds(5);

// One text for a name that never existed, one that has expired, and one that the caller may not
// use.
absl::Status NotFound(std::string_view name) {
  return absl::NotFoundError(
      absl::StrFormat("prefix: there is no \"%s\" that the caller may use", name));
}

absl::Status CheckExpiration(const PrefixExpiration& expiration, bool refresh_on_hit) {
  const auto* ttl = std::get_if<absl::Duration>(&expiration);
  if (ttl != nullptr && *ttl <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ttl: want more than 0, got %s", absl::FormatDuration(*ttl)));
  }
  if (ttl == nullptr && refresh_on_hit) {
    return absl::InvalidArgumentError("refresh_on_hit: want a ttl, got an expire_time");
  }
  return absl::OkStatus();
}

}  // namespace

PrefixRegistry::PrefixRegistry(PrefixRegistryConfig config, const Frontend& frontend,
                               CacheLedger& ledger, const base::Clock& clock, PrefixHost& host,
                               std::unique_ptr<PrefixLog> log)
    : config_(std::move(config)),
      frontend_(frontend),
      ledger_(ledger),
      clock_(clock),
      host_(host),
      log_(std::move(log)) {
  if (log_ != nullptr) Restore();
}

void PrefixRegistry::Start(std::function<absl::Time()> others) {
  other_timers_ = std::move(others);
  housekeeper_ = std::thread([this] { Keep(); });
}

void PrefixRegistry::Stop() {
  {
    base::MutexLock lock(mu_);
    stopping_ = true;
    timers_changed_.NotifyAll();
    for (const auto& [pin, record] : records_) {
      if (record->End() != record->saved_end) NoteChange(*record);
    }
  }
  if (housekeeper_.joinable()) housekeeper_.join();
  if (log_ != nullptr) WriteLog();
}

void PrefixRegistry::Wake() {
  base::MutexLock lock(mu_);
  woken_ = true;
  timers_changed_.NotifyAll();
}

void PrefixRegistry::Keep() {
  while (true) {
    const absl::Time others = other_timers_ ? other_timers_() : absl::InfiniteFuture();
    const absl::Time next = RunTimers();
    base::MutexLock lock(mu_);
    if (stopping_) return;
    const absl::Time first = timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first;
    if (first < next || NextWrite() <= clock_.Now() || std::exchange(woken_, false)) continue;
    const absl::Duration wait =
        std::min(std::min({first, others, NextWrite()}) - clock_.Now(), kLongestWait);
    if (wait > absl::ZeroDuration()) {
      timers_changed_.WaitFor(mu_, absl::ToChronoNanoseconds(wait));
    }
  }
}

absl::Time PrefixRegistry::RunTimers() {
  std::vector<RecordPtr> ended;
  absl::Time next = absl::InfiniteFuture();
  {
    base::MutexLock lock(mu_);
    const absl::Time now = clock_.Now();
    while (!requests_by_end_.empty() && requests_by_end_.begin()->first <= now) {
      ForgetRequest(RequestKey(requests_by_end_.begin()->second));
    }
    while (!timers_.empty() && timers_.begin()->first <= now) {
      const RecordPtr record = records_.at(timers_.begin()->second);
      if (record->End() > now) {
        SetTimer(*record);
        if (record->End() != record->saved_end) NoteChange(*record);
        continue;
      }
      Remove(*record);
      ended.push_back(record);
    }
    if (!timers_.empty()) next = timers_.begin()->first;
  }
  for (const RecordPtr& record : ended) GiveBack(record);
  if (log_ != nullptr) WriteLog();
  return next;
}

void PrefixRegistry::SetTimer(PrefixRecord& record) {
  timers_.erase({record.timer, record.pin});
  record.timer = record.End();
  if (log_ != nullptr && record.refresh_on_hit) {
    // Hits move the end. The disk learns of it at these times.
    record.timer =
        std::min(record.timer, clock_.Now() + std::max(record.ttl / kNotesPerTtl, kLeastNotePause));
  }
  timers_.emplace(record.timer, record.pin);
  if (timers_.begin()->second == record.pin) timers_changed_.NotifyAll();
}

void PrefixRegistry::Remove(PrefixRecord& record) {
  timers_.erase({record.timer, record.pin});
  by_name_.erase(record.name);
  records_.erase(record.pin);
  record.is_gone = true;
  num_prefixes_.GiveBack(record.tenant, 1);
  NoteChange(record);
}

void PrefixRegistry::Remember(const PrefixRecord& record, absl::Duration left) {
  const RequestKey key(record.tenant, record.request_id);
  ForgetRequest(key);
  const absl::Time end = clock_.Now() + left;
  requests_[key] = {.pin = record.pin, .digest = record.request_digest, .end = end};
  requests_by_end_.emplace(end, key);
  num_requests_.Take(record.tenant, 1);
}

void PrefixRegistry::ForgetRequest(const RequestKey& key) {
  const auto it = requests_.find(key);
  if (it == requests_.end()) return;
  requests_by_end_.erase({it->second.end, key});
  requests_.erase(it);
  num_requests_.GiveBack(key.first, 1);
}

void PrefixRegistry::SetExpiration(PrefixRecord& record, const PrefixExpiration& expiration) const {
  if (const auto* ttl = std::get_if<absl::Duration>(&expiration)) {
    record.ttl = *ttl;
    SetEndAfter(record, *ttl);
  } else {
    record.ttl = absl::ZeroDuration();
    record.expires_wall = std::get<absl::Time>(expiration);
    record.expires = clock_.FromDate(record.expires_wall);
  }
}

void PrefixRegistry::SetEndAfter(PrefixRecord& record, absl::Duration left) const {
  record.expires = clock_.Now() + left;
  record.expires_wall = clock_.Date() + left;
}

absl::StatusOr<std::string> PrefixRegistry::Create(PrefixParams params, Done done) {
  if (!params.model.empty() && params.model != config_.model) {
    return absl::NotFoundError(absl::StrFormat("model: \"%s\" is not served here, \"%s\" is",
                                               params.model, config_.model));
  }
  RETURN_IF_ERROR(CheckLength("display_name", params.display_name, kMostDisplayNameBytes));
  RETURN_IF_ERROR(CheckAllowedTenants(params.allowed_tenants));
  RETURN_IF_ERROR(CheckExpiration(params.expiration, params.refresh_on_hit));
  RETURN_IF_ERROR(CheckLength("request_id", params.request_id, kMostRequestIdBytes));
  const int64_t num_bytes = NumBytesToEncode(params.content);
  const RequestKey key(params.caller.tenant, params.request_id);

  RecordPtr record = std::make_shared<PrefixRecord>();
  std::shared_ptr<Request> request;
  {
    base::MutexLock lock(mu_);
    const auto known = requests_.find(key);
    const auto same = known == requests_.end() ? records_.end() : records_.find(known->second.pin);
    if (!params.request_id.empty() && known != requests_.end()) {
      if (!IsDigestOf(known->second.digest, params)) {
        return absl::InvalidArgumentError(
            "request_id: it was used within an hour for a prefix with other fields: want the same "
            "ones, or a new id");
      }
      if (same != records_.end()) record = same->second;
    }
    if (record->pin != 0 && record->state == PrefixState::kComputing) {
      record->waiters.push_back(std::move(done));
      return record->name;
    }
    if (record->pin == 0) {
      const PrefixCaller& owner = params.caller;
      RETURN_IF_ERROR(num_prefixes_.Check("prefix", owner.tenant, owner.limits, 1));
      if (!params.request_id.empty() && known == requests_.end()) {
        RETURN_IF_ERROR(
            num_requests_.Check("request_id: of an hour", owner.tenant, owner.limits, 1));
      }
      record->pin = next_pin_++;
      record->name = base::NewResourceName("prefixes");
      record->tenant = params.caller.tenant;
      record->salt = params.salt;
      record->display_name = params.display_name;
      record->allowed_tenants = params.allowed_tenants;
      record->create_wall = record->update_wall = clock_.Date();
      record->refresh_on_hit = params.refresh_on_hit;
      SetExpiration(*record, params.expiration);
      record->request_id = params.request_id;
      record->request_digest = RequestDigest(params);
      record->given = std::move(params.content);
      record->waiters.push_back(std::move(done));
      record->request = request = NewRequest(record, params.caller.limits);
      records_.emplace(record->pin, record);
      by_name_.emplace(record->name, record);
      num_prefixes_.Take(record->tenant, 1);
      SetTimer(*record);
      if (!params.request_id.empty()) Remember(*record, kRequestIdKept);
      done = nullptr;
    }
  }
  if (done) {  // it is there already
    Warm(params.caller, record->name, std::move(done));
    return record->name;
  }
  if (absl::Status status = host_.Compute(std::move(request), num_bytes); !status.ok()) {
    std::vector<Done> others;  // that sent the same request_id meanwhile
    {
      base::MutexLock lock(mu_);
      others.swap(record->waiters);
      record->request = nullptr;
      ForgetRequest(key);
      if (!record->is_gone) Remove(*record);
    }
    // The first is that of this call, and after an error nothing is called.
    for (size_t i = 1; i < others.size(); ++i) std::move(others[i])(status);
    return status;
  }
  return record->name;
}

absl::StatusOr<PrefixRegistry::RecordPtr> PrefixRegistry::Find(const PrefixCaller& caller,
                                                               std::string_view name) const {
  const auto it = by_name_.find(name);
  const bool may =
      it != by_name_.end() && it->second->MayBeUsedBy(caller) && it->second->End() > clock_.Now();
  if (!may) return NotFound(name);
  return it->second;
}

absl::StatusOr<PrefixRegistry::RecordPtr> PrefixRegistry::FindOwn(const PrefixCaller& caller,
                                                                  std::string_view name,
                                                                  std::string_view etag) const {
  ASSIGN_OR_RETURN(RecordPtr record, Find(caller, name));
  if (!record->IsOwnedBy(caller)) {
    return absl::PermissionDeniedError(
        absl::StrFormat("prefix: only the owner of \"%s\" and operators may do this", name));
  }
  if (!etag.empty() && etag != record->etag()) {
    return absl::AbortedError(absl::StrFormat(
        "etag: want \"%s\", got \"%s\": the prefix was updated meanwhile", record->etag(), etag));
  }
  return record;
}

PrefixInfo PrefixRegistry::InfoOf(const PrefixRecord& record, bool for_owner) const {
  PrefixInfo info{.pin = record.pin,
                  .name = record.name,
                  .display_name = record.display_name,
                  .state = record.state,
                  .error = record.error,
                  .tenant = record.tenant,
                  .content_sha256 = record.content_sha256,
                  .create_time = record.create_wall,
                  .update_time = record.update_wall,
                  .expire_time = record.ToWall(record.End()),
                  .ttl = record.ttl,
                  .refresh_on_hit = record.refresh_on_hit,
                  .allowed_tenants = record.allowed_tenants,
                  .etag = record.etag()};
  if (record.content != nullptr) info.num_tokens = std::ssize(record.content->ids);
  if (!record.blocks.empty()) info.num_blocks = record.blocks[0];
  for (size_t g = 0; g < record.blocks.size(); ++g) {
    info.kv_bytes += record.blocks[g] * config_.bytes_per_block[g];
  }
  if (!for_owner) return info;
  info.use = PrefixInfo::Use{.charged_blocks = config_.charged_for(record.pinned_ids)};
  if (record.content != nullptr) {
    const PrefixContent::Use& use = record.content->use;
    info.use->hits = use.hits.load(std::memory_order_relaxed);
    info.use->saved_tokens = use.saved_tokens.load(std::memory_order_relaxed);
    const int64_t hit = use.last_hit_ns.load(std::memory_order_relaxed);
    if (hit != PrefixContent::kNoHit) {
      info.use->last_hit_time = record.ToWall(absl::FromUnixNanos(hit));
    }
  }
  return info;
}

std::vector<PrefixRegistry::Known> PrefixRegistry::AllKnown() const {
  std::vector<Known> all;
  base::MutexLock lock(mu_);
  for (const auto& [pin, record] : records_) {
    if (record->content == nullptr) continue;
    all.push_back({.tenant = record->tenant, .salt = record->salt, .content = record->content});
  }
  return all;
}

absl::StatusOr<PrefixInfo> PrefixRegistry::Get(const PrefixCaller& caller,
                                               std::string_view name) const {
  base::MutexLock lock(mu_);
  ASSIGN_OR_RETURN(const RecordPtr record, Find(caller, name));
  return InfoOf(*record, record->IsOwnedBy(caller));
}

absl::StatusOr<NamedPrefixes::Page> PrefixRegistry::List(const PrefixCaller& caller,
                                                         std::optional<std::string> tenant,
                                                         uint64_t after, int32_t at_most) const {
  if (tenant && *tenant != caller.tenant && !caller.is_operator) {
    return absl::PermissionDeniedError("tenant: only operators may name another tenant");
  }
  Page page;
  base::MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  for (auto it = records_.upper_bound(after); it != records_.end(); ++it) {
    const PrefixRecord& record = *it->second;
    if ((tenant && record.tenant != *tenant) || !record.MayBeUsedBy(caller) ||
        record.End() <= now) {
      continue;
    }
    if (std::ssize(page.prefixes) == at_most) return page;
    page.prefixes.push_back(InfoOf(record, record.IsOwnedBy(caller)));
    page.next = it->first;
  }
  page.next = 0;
  return page;
}

absl::StatusOr<PrefixInfo> PrefixRegistry::Update(const PrefixCaller& caller,
                                                  const PrefixUpdate& update) {
  if (update.display_name) {
    RETURN_IF_ERROR(CheckLength("display_name", *update.display_name, kMostDisplayNameBytes));
  }
  if (update.allowed_tenants) RETURN_IF_ERROR(CheckAllowedTenants(*update.allowed_tenants));
  base::MutexLock lock(mu_);
  ASSIGN_OR_RETURN(const RecordPtr record, FindOwn(caller, update.name, update.etag));
  const bool refreshes = update.refresh_on_hit.value_or(record->refresh_on_hit);
  if (update.expiration) {
    RETURN_IF_ERROR(CheckExpiration(*update.expiration, refreshes));
  } else if (refreshes && record->ttl == absl::ZeroDuration()) {
    return absl::InvalidArgumentError("refresh_on_hit: want a ttl, got an expire_time");
  }
  // A failed prefix keeps its minute.
  if (update.expiration && record->state != PrefixState::kFailed) {
    SetExpiration(*record, *update.expiration);
  }
  record->refresh_on_hit = refreshes && record->state != PrefixState::kFailed;
  if (update.display_name) record->display_name = *update.display_name;
  if (update.allowed_tenants) record->allowed_tenants = *update.allowed_tenants;
  record->update_wall = clock_.Date();
  ++record->version;
  SetTimer(*record);
  NoteChange(*record);
  return InfoOf(*record, /*for_owner=*/true);
}

absl::Status PrefixRegistry::Delete(const PrefixCaller& caller, std::string_view name,
                                    std::string_view etag) {
  RecordPtr record;
  {
    base::MutexLock lock(mu_);
    ASSIGN_OR_RETURN(record, FindOwn(caller, name, etag));
    Remove(*record);
  }
  GiveBack(record);
  return absl::OkStatus();
}

bool PrefixRegistry::IsCounted(uint64_t pin) const {
  base::MutexLock lock(mu_);
  const auto it = records_.find(pin);
  return it != records_.end() && !it->second->blocks.empty();
}

std::array<int64_t, kNumPrefixStates> PrefixRegistry::CountByState() const {
  std::array<int64_t, kNumPrefixStates> counts{};
  base::MutexLock lock(mu_);
  for (const auto& [pin, record] : records_) ++counts[static_cast<size_t>(record->state)];
  return counts;
}

}  // namespace quire::engine
