#include "tests/testing/fake_prefixes.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"

namespace quire::testing {
namespace {

constexpr int64_t kBlockSize = 16;

int64_t NumTokens(const engine::PrefixParams& params) {
  if (const auto* text = std::get_if<std::string>(&params.content)) return std::ssize(*text);
  if (const auto* ids = std::get_if<engine::TokenIds>(&params.content)) return std::ssize(*ids);
  int64_t number = 0;
  for (const auto& message : std::get<engine::ChatMessages>(params.content)) {
    number += std::ssize(message.content);
  }
  return number;
}

bool SameContent(const engine::PrefixParams& a, const engine::PrefixParams& b) {
  if (a.content.index() != b.content.index()) return false;
  if (const auto* text = std::get_if<std::string>(&a.content)) {
    return *text == std::get<std::string>(b.content);
  }
  if (const auto* ids = std::get_if<engine::TokenIds>(&a.content)) {
    return *ids == std::get<engine::TokenIds>(b.content);
  }
  return std::ranges::equal(
      std::get<engine::ChatMessages>(a.content), std::get<engine::ChatMessages>(b.content),
      [](const auto& x, const auto& y) { return x.role == y.role && x.content == y.content; });
}

bool Owns(const engine::ContextCaller& caller, const engine::PrefixInfo& info) {
  return caller.is_operator || caller.tenant == info.tenant;
}

bool IsAllowed(const engine::ContextCaller& caller, const engine::PrefixInfo& info) {
  return caller.tenant == info.tenant ||
         std::ranges::any_of(info.allowed_tenants, [&](const std::string& tenant) {
           return tenant == "*" || tenant == caller.tenant;
         });
}

}  // namespace

void FakePrefixes::Hold() {
  base::MutexLock lock(mu_);
  held_ = true;
}

void FakePrefixes::Release() {
  Calls calls;
  {
    base::MutexLock lock(mu_);
    held_ = false;
    calls = Compute();
  }
  Run(std::move(calls));
}

void FakePrefixes::Advance(absl::Duration by) {
  base::MutexLock lock(mu_);
  now_ += by;
  const absl::Time now = now_;
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.info.expire_time <= now; });
}

int64_t FakePrefixes::num_prefixes() const {
  base::MutexLock lock(mu_);
  return std::ssize(entries_);
}

int64_t FakePrefixes::num_computing() const {
  base::MutexLock lock(mu_);
  return std::ranges::count_if(entries_, [](const auto& entry) {
    return entry.second.info.state == engine::PrefixState::kComputing;
  });
}

engine::PrefixParams FakePrefixes::last_params() const {
  base::MutexLock lock(mu_);
  return last_params_;
}

bool FakePrefixes::WaitForPrefixes(int64_t number) const {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  base::MutexLock lock(mu_);
  while (std::ssize(entries_) != number) {
    if (absl::Now() > deadline) return false;
    changed_.WaitFor(mu_, std::chrono::milliseconds(10));
  }
  return true;
}

absl::StatusOr<std::string> FakePrefixes::Create(engine::PrefixParams params, Done done) {
  Calls calls;
  std::string name;
  {
    base::MutexLock lock(mu_);
    last_params_ = params;
    int64_t num_owned = 0;
    for (auto& [order, entry] : entries_) {
      if (entry.info.tenant != params.caller.tenant) continue;
      ++num_owned;
      if (params.request_id.empty() || entry.params.request_id != params.request_id) continue;
      if (!SameContent(entry.params, params)) {
        return absl::InvalidArgumentError("request_id: was used for other content");
      }
      entry.waiting.push_back(std::move(done));
      name = entry.info.name;
      break;
    }
    if (name.empty()) {
      if (num_owned >= kMaxPrefixes) {
        return absl::ResourceExhaustedError(absl::StrFormat(
            "prefixes: want 1 more, got %d of at most %d", num_owned, kMaxPrefixes));
      }
      Entry& entry = entries_[++last_];
      name = absl::StrFormat("prefixes/%026d", last_);
      entry.info = {.name = name,
                    .display_name = params.display_name,
                    .tenant = params.caller.tenant,
                    .create_time = now_,
                    .update_time = now_,
                    .refresh_on_hit = params.refresh_on_hit,
                    .allowed_tenants = params.allowed_tenants,
                    .etag = absl::StrCat("e", ++num_updates_)};
      SetExpiration(params.expiration, now_, entry.info);
      entry.params = std::move(params);
      entry.waiting.push_back(std::move(done));
    }
    if (!held_) calls = Compute();
    changed_.NotifyAll();
  }
  Run(std::move(calls));
  return name;
}

absl::StatusOr<engine::PrefixInfo> FakePrefixes::Get(const engine::ContextCaller& caller,
                                                     std::string_view name) const {
  base::MutexLock lock(mu_);
  ASSIGN_OR_RETURN(const uint64_t order, Find(caller, name));
  return InfoFor(caller, entries_.at(order));
}

absl::StatusOr<engine::NamedPrefixes::Page> FakePrefixes::List(const engine::ContextCaller& caller,
                                                               std::optional<std::string> tenant,
                                                               uint64_t after,
                                                               int32_t at_most) const {
  if (tenant.has_value() && *tenant != caller.tenant && !caller.is_operator) {
    return absl::PermissionDeniedError("tenant: want your own, or the role operator");
  }
  base::MutexLock lock(mu_);
  Page page;
  for (auto it = entries_.upper_bound(after); it != entries_.end(); ++it) {
    const engine::PrefixInfo& info = it->second.info;
    if (tenant.has_value() ? info.tenant != *tenant : !IsAllowed(caller, info)) continue;
    if (std::ssize(page.prefixes) == at_most) return page;
    page.prefixes.push_back(InfoFor(caller, it->second));
    page.next = it->first;
  }
  page.next = 0;
  return page;
}

absl::StatusOr<engine::PrefixInfo> FakePrefixes::Update(const engine::ContextCaller& caller,
                                                        const engine::PrefixUpdate& update) {
  base::MutexLock lock(mu_);
  ASSIGN_OR_RETURN(const uint64_t order, FindToChange(caller, update.name, update.etag));
  Entry& entry = entries_.at(order);
  if (update.display_name) entry.info.display_name = *update.display_name;
  if (update.refresh_on_hit) entry.info.refresh_on_hit = *update.refresh_on_hit;
  if (update.allowed_tenants) entry.info.allowed_tenants = *update.allowed_tenants;
  if (update.expiration) SetExpiration(*update.expiration, now_, entry.info);
  entry.info.update_time = now_;
  entry.info.etag = absl::StrCat("e", ++num_updates_);
  return InfoFor(caller, entry);
}

absl::Status FakePrefixes::Delete(const engine::ContextCaller& caller, std::string_view name,
                                  std::string_view etag) {
  Calls calls;
  {
    base::MutexLock lock(mu_);
    ASSIGN_OR_RETURN(const uint64_t order, FindToChange(caller, name, etag));
    for (Done& done : entries_.at(order).waiting) {
      calls.emplace_back(std::move(done), absl::CancelledError("deleted"));
    }
    entries_.erase(order);
    changed_.NotifyAll();
  }
  Run(std::move(calls));
  return absl::OkStatus();
}

void FakePrefixes::Warm(const engine::ContextCaller& caller, std::string_view name, Done done) {
  Calls calls;
  {
    base::MutexLock lock(mu_);
    const absl::StatusOr<uint64_t> order = FindToChange(caller, name, "");
    if (!order.ok()) {
      calls.emplace_back(std::move(done), order.status());
    } else if (Entry& entry = entries_.at(*order);
               entry.info.state == engine::PrefixState::kComputing) {
      entry.waiting.push_back(std::move(done));
    } else {
      calls.emplace_back(std::move(done), InfoFor(caller, entry));
    }
  }
  Run(std::move(calls));
}

absl::StatusOr<uint64_t> FakePrefixes::Find(const engine::ContextCaller& caller,
                                            std::string_view name) const {
  for (const auto& [order, entry] : entries_) {
    if (entry.info.name == name && (Owns(caller, entry.info) || IsAllowed(caller, entry.info))) {
      return order;
    }
  }
  return absl::NotFoundError(absl::StrFormat("prefix: there is no \"%s\" that you may use", name));
}

absl::StatusOr<uint64_t> FakePrefixes::FindToChange(const engine::ContextCaller& caller,
                                                    std::string_view name,
                                                    std::string_view etag) const {
  ASSIGN_OR_RETURN(const uint64_t order, Find(caller, name));
  const engine::PrefixInfo& info = entries_.at(order).info;
  if (!Owns(caller, info)) return absl::PermissionDeniedError("prefix: want its owner");
  if (!etag.empty() && etag != info.etag) {
    return absl::AbortedError(absl::StrFormat("etag: want \"%s\", got \"%s\"", info.etag, etag));
  }
  return order;
}

engine::PrefixInfo FakePrefixes::InfoFor(const engine::ContextCaller& caller,
                                         const Entry& entry) const {
  engine::PrefixInfo info = entry.info;
  if (Owns(caller, info)) {
    info.use = {.hits = 3, .saved_tokens = 7, .last_hit_time = now_, .charged_blocks = 0.5};
  }
  return info;
}

FakePrefixes::Calls FakePrefixes::Compute() {
  Calls calls;
  for (auto& [order, entry] : entries_) {
    if (entry.info.state == engine::PrefixState::kComputing) {
      entry.info.num_tokens = NumTokens(entry.params);
      entry.info.num_blocks = (entry.info.num_tokens + kBlockSize - 1) / kBlockSize;
      entry.info.kv_bytes = entry.info.num_blocks * 100;
      entry.info.content_sha256 = std::string(32, '\x80');
      entry.info.state = engine::PrefixState::kReady;
      if (entry.info.num_tokens > kMaxTokens) {
        entry.info.state = engine::PrefixState::kFailed;
        entry.info.error = absl::InvalidArgumentError(absl::StrFormat(
            "text: want at most %d tokens, got %d", kMaxTokens, entry.info.num_tokens));
      }
    }
    for (Done& done : entry.waiting) {
      calls.emplace_back(std::move(done), InfoFor(entry.params.caller, entry));
    }
    entry.waiting.clear();
  }
  return calls;
}

void FakePrefixes::SetExpiration(const engine::PrefixExpiration& expiration, absl::Time now,
                                 engine::PrefixInfo& info) {
  if (const auto* ttl = std::get_if<absl::Duration>(&expiration)) {
    info.ttl = *ttl;
    info.expire_time = now + *ttl;
  } else {
    info.ttl = absl::ZeroDuration();
    info.expire_time = std::get<absl::Time>(expiration);
  }
}

void FakePrefixes::Run(Calls calls) {
  for (auto& [done, result] : calls) std::move(done)(std::move(result));
}

}  // namespace quire::testing
