#include "engine/sharing/prefix_registry.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::engine {
namespace {

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
      log_(std::move(log)),
      table_(clock, {.collection = "prefixes",
                     .most = kMaxPrefixes,
                     .on_earlier_timer = config_.on_earlier_timer}) {
  if (log_ != nullptr) Restore();
}

void PrefixRegistry::Stop() {
  {
    base::MutexLock lock(mu_);
    stopping_ = true;
    for (const auto& [pin, record] : table_.records()) {
      if (record->End() != record->saved_end) NoteChange(*record);
    }
  }
  if (log_ != nullptr) WriteLog();
}

absl::Time PrefixRegistry::RunTimers() {
  std::vector<RecordPtr> ended;
  {
    base::MutexLock lock(mu_);
    const absl::Time now = clock_.Now();
    while (const RecordPtr record = table_.TakeDue(now)) {
      if (record->End() > now) {
        SetTimer(*record);
        if (record->End() != record->saved_end) NoteChange(*record);
        continue;
      }
      Remove(record);
      ended.push_back(record);
    }
  }
  for (const RecordPtr& record : ended) GiveBack(record);
  if (log_ != nullptr) WriteLog();
  base::MutexLock lock(mu_);
  return std::min(table_.next_timer(), NextWrite());
}

void PrefixRegistry::SetTimer(PrefixRecord& record) {
  absl::Time timer = record.End();
  if (log_ != nullptr && record.refresh_on_hit) {
    // Hits move the end. The disk learns of it at these times.
    timer = std::min(timer, clock_.Now() + std::max(record.ttl / kNotesPerTtl, kLeastNotePause));
  }
  table_.SetTimer(record, timer);
}

void PrefixRegistry::Remove(const RecordPtr& record) {
  table_.Remove(record);
  record->is_gone = true;
  NoteChange(*record);
}

void PrefixRegistry::SetExpiration(PrefixRecord& record, const PrefixExpiration& expiration) const {
  if (const auto* ttl = std::get_if<absl::Duration>(&expiration)) {
    record.ttl = *ttl;
    table_.SetEndAfter(record, *ttl);
  } else {
    record.ttl = absl::ZeroDuration();
    record.expires_wall = std::get<absl::Time>(expiration);
    record.expires = clock_.FromDate(record.expires_wall);
  }
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

  RecordPtr record;
  std::shared_ptr<Request> request;
  {
    base::MutexLock lock(mu_);
    record = table_.FindRequest(params.caller.tenant, params.request_id);
    if (record != nullptr && !IsDigestOf(record->request_digest, params)) return OtherRequest();
    if (record != nullptr && record->state == PrefixState::kComputing) {
      record->waiters.push_back(std::move(done));
      return record->name;
    }
    if (record == nullptr) {
      const ContextCaller& owner = params.caller;
      RETURN_IF_ERROR(table_.CheckRoom("prefix", owner.tenant, owner.limits, 1));
      record = std::make_shared<PrefixRecord>();
      record->tenant = owner.tenant;
      record->salt = params.salt;
      record->display_name = params.display_name;
      record->allowed_tenants = params.allowed_tenants;
      record->refresh_on_hit = params.refresh_on_hit;
      SetExpiration(*record, params.expiration);
      record->request_id = params.request_id;
      record->request_digest = RequestDigest(params);
      record->given = std::move(params.content);
      record->waiters.push_back(std::move(done));
      table_.AddNew(record);
      record->update_wall = record->create_wall;
      record->request = request = NewRequest(record, owner.limits);
      SetTimer(*record);
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
      if (!record->is_gone) Remove(record);
    }
    // The first is that of this call, and after an error nothing is called.
    for (size_t i = 1; i < others.size(); ++i) std::move(others[i])(status);
    return status;
  }
  return record->name;
}

absl::StatusOr<PrefixRegistry::RecordPtr> PrefixRegistry::Find(const ContextCaller& caller,
                                                               std::string_view name) const {
  const RecordPtr record = table_.Find(name);
  const bool may = record != nullptr && record->MayBeUsedBy(caller) && record->End() > clock_.Now();
  if (!may) return NotFound(name);
  return record;
}

absl::StatusOr<PrefixRegistry::RecordPtr> PrefixRegistry::FindOwn(const ContextCaller& caller,
                                                                  std::string_view name,
                                                                  std::string_view etag) const {
  ASSIGN_OR_RETURN(RecordPtr record, Find(caller, name));
  if (!record->IsOwnedBy(caller)) {
    return absl::PermissionDeniedError(
        absl::StrFormat("prefix: only the owner of \"%s\" and operators may do this", name));
  }
  RETURN_IF_ERROR(CheckEtag(*record, etag));
  return record;
}

PrefixInfo PrefixRegistry::InfoOf(const PrefixRecord& record, bool for_owner) const {
  PrefixInfo info{.pin = record.pin_id,
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
  for (const auto& [pin, record] : table_.records()) {
    if (record->content == nullptr) continue;
    all.push_back({.tenant = record->tenant, .salt = record->salt, .content = record->content});
  }
  return all;
}

absl::StatusOr<PrefixInfo> PrefixRegistry::Get(const ContextCaller& caller,
                                               std::string_view name) const {
  base::MutexLock lock(mu_);
  ASSIGN_OR_RETURN(const RecordPtr record, Find(caller, name));
  return InfoOf(*record, record->IsOwnedBy(caller));
}

absl::StatusOr<NamedPrefixes::Page> PrefixRegistry::List(const ContextCaller& caller,
                                                         std::optional<std::string> tenant,
                                                         uint64_t after, int32_t at_most) const {
  RETURN_IF_ERROR(CheckMayList(caller, tenant.value_or(caller.tenant)));
  base::MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  const auto found = table_.List(after, at_most, [&](const PrefixRecord& record) {
    return (!tenant || record.tenant == *tenant) && record.MayBeUsedBy(caller) &&
           record.End() > now;
  });
  Page page{.prefixes = {}, .next = found.next};
  for (const RecordPtr& record : found.records) {
    page.prefixes.push_back(InfoOf(*record, record->IsOwnedBy(caller)));
  }
  return page;
}

absl::StatusOr<PrefixInfo> PrefixRegistry::Update(const ContextCaller& caller,
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

absl::Status PrefixRegistry::Delete(const ContextCaller& caller, std::string_view name,
                                    std::string_view etag) {
  RecordPtr record;
  {
    base::MutexLock lock(mu_);
    ASSIGN_OR_RETURN(record, FindOwn(caller, name, etag));
    Remove(record);
  }
  GiveBack(record);
  return absl::OkStatus();
}

bool PrefixRegistry::IsCounted(uint64_t pin) const {
  base::MutexLock lock(mu_);
  const RecordPtr record = table_.FindPin(pin);
  return record != nullptr && !record->blocks.empty();
}

std::array<int64_t, kNumPrefixStates> PrefixRegistry::CountByState() const {
  std::array<int64_t, kNumPrefixStates> counts{};
  base::MutexLock lock(mu_);
  for (const auto& [pin, record] : table_.records()) ++counts[static_cast<size_t>(record->state)];
  return counts;
}

}  // namespace quire::engine
