#include "engine/sharing/session_registry.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::engine {
namespace {

absl::Status InTurn() {
  return absl::AbortedError("the session is in a turn: wait for its end, or cancel it");
}

absl::Status CheckTtl(absl::Duration ttl) {
  if (ttl >= kMinSessionTtl && ttl <= kMaxSessionTtl) return absl::OkStatus();
  const bool is_finite = absl::AbsDuration(ttl) != absl::InfiniteDuration();
  return absl::InvalidArgumentError(
      absl::StrFormat("ttl: want %s..%s, got %s", absl::FormatDuration(kMinSessionTtl),
                      absl::FormatDuration(kMaxSessionTtl),
                      is_finite ? absl::FormatDuration(ttl) : "no valid duration"));
}

size_t HashOf(const std::string& text) { return absl::HashOf(text); }
size_t HashOf(const TokenIds& ids) { return absl::HashOf(ids); }
size_t HashOf(const ChatMessages& messages) {
  size_t hash = messages.size();
  for (const text::ChatMessage& message : messages) {
    hash = absl::HashOf(hash, message.role, message.content, message.literal);
  }
  return hash;
}

// A hash of what comes with a request_id names all members, so that a new one is not forgotten. The
// tenant, the session's name and the request_id find it.
size_t HashOf(const SessionCopy& copy) {
  const auto& [ids, messages, answer_len, content_sha256] = copy;
  return absl::HashOf(HashOf(ids), messages.has_value() ? HashOf(*messages) : size_t{0},
                      messages.has_value(), answer_len, content_sha256);
}
size_t HashOf(const SessionParams& params) {
  const auto& [caller, model, prefix_name, display_name, pinned, ttl, salt, request_id, content] =
      params;
  return absl::HashOf(model, prefix_name, display_name, pinned, ttl, salt,
                      content.has_value() ? HashOf(*content) : size_t{0});
}
size_t HashOf(const SessionAppend& append) {
  // The etag is a condition, which holds for the first call alone.
  const auto& [caller, name, content, etag, request_id] = append;
  return absl::HashOf(content.index(),
                      std::visit([](const auto& given) { return HashOf(given); }, content));
}
size_t HashOf(const SessionFork& fork) {
  const auto& [caller, name, at_token, count, ttl, pinned, request_id] = fork;
  return absl::HashOf(at_token.value_or(-1), count, ttl.value_or(absl::ZeroDuration()),
                      pinned.has_value() ? 1 + int{*pinned} : 0);
}

}  // namespace

absl::Status SessionTurn::ReserveBytes(int64_t num_bytes) {
  return registry_.ReserveBytes(*this, num_bytes);
}

absl::Status SessionTurn::ReservePin(const Pins& pins) {
  return pin_ == nullptr ? absl::OkStatus() : registry_.ReservePin(*this, pins);
}

void SessionTurn::CountEnd(const absl::Status& status) {
  const TurnResult result = status.ok()                 ? TurnResult::kOk
                            : absl::IsCancelled(status) ? TurnResult::kCancelled
                                                        : TurnResult::kFailed;
  registry_.turns_[static_cast<size_t>(result)].fetch_add(1, std::memory_order_relaxed);
}

SessionInfo SessionTurn::Commit(SessionContent after, bool is_turn) {
  if (ended_.exchange(true)) return {};
  return registry_.EndTurn(*this, std::make_shared<const SessionContent>(std::move(after)), is_turn,
                           nullptr, 0);
}

SessionAppended SessionTurn::Commit(SessionContent after, int64_t kept_tokens,
                                    const SessionAppend& append) {
  if (ended_.exchange(true)) return {};
  return {
      .session = registry_.EndTurn(*this, std::make_shared<const SessionContent>(std::move(after)),
                                   /*is_turn=*/false, &append, kept_tokens),
      .kept_tokens = kept_tokens};
}

void SessionTurn::End() {
  if (!ended_.exchange(true)) registry_.EndTurn(*this, nullptr, false, nullptr, 0);
}

absl::StatusOr<SessionInfo> SessionRegistry::Create(const SessionParams& params) {
  if (!params.model.empty() && params.model != config_.model) {
    return absl::NotFoundError(absl::StrFormat("model: \"%s\" is not served here; want \"%s\"",
                                               params.model, config_.model));
  }
  RETURN_IF_ERROR(CheckLength("display_name", params.display_name, kMostDisplayNameBytes));
  RETURN_IF_ERROR(CheckLength("salt", params.salt, kMostSaltBytes));
  RETURN_IF_ERROR(CheckLength("request_id", params.request_id, kMostRequestIdBytes));
  RETURN_IF_ERROR(CheckTtl(params.ttl));
  RETURN_IF_ERROR(CheckMayPin(params.pinned));
  absl::StatusOr<std::shared_ptr<const PrefixContent>> prefix = nullptr;
  if (!params.prefix_name.empty() && !config_.resolve_prefix) {
    return absl::InvalidArgumentError("prefix_name: want none on this server");
  } else if (!params.prefix_name.empty()) {
    prefix = config_.resolve_prefix(params.caller, params.prefix_name);
  }
  absl::StatusOr<SessionContent> content =
      prefix.ok() ? FirstContent(params, *std::move(prefix)) : prefix.status();
  Removed removed(*this);
  base::MutexLock lock(mu_);
  RemoveExpired(removed);
  const auto& [tenant, is_operator, limits] = params.caller;
  if (const RecordPtr known = table_.FindRequest(tenant, params.request_id); known != nullptr) {
    if (known->created_hash != HashOf(params)) return OtherRequest();
    return InfoOf(*known);
  }
  RETURN_IF_ERROR(content.status());  // after the replay, which outlives the prefix
  RETURN_IF_ERROR(CheckRoom(tenant, limits, 1));
  RETURN_IF_ERROR(CheckBytes(tenant, limits, content->num_bytes()));
  return InfoOf(*Add({{.tenant = tenant,
                       .salt = params.salt,
                       .display_name = params.display_name,
                       .ttl = params.ttl,
                       .request_id = params.request_id},
                      params.prefix_name,
                      limits,
                      HashOf(params),
                      std::make_shared<const SessionContent>(*std::move(content))},
                     params.pinned));
}

absl::StatusOr<SessionInfo> SessionRegistry::Get(const ContextCaller& caller,
                                                 std::string_view name) {
  Removed removed(*this);
  base::MutexLock lock(mu_);
  RemoveExpired(removed);
  const RecordPtr record = Find(caller, name, /*for_operators=*/true);
  if (record == nullptr) return NoSuchSession();
  return InfoOf(*record);
}

absl::StatusOr<Sessions::Page> SessionRegistry::List(const ContextCaller& caller,
                                                     const std::optional<std::string>& tenant,
                                                     uint64_t after, int32_t at_most) {
  const std::string& owner = tenant.has_value() ? *tenant : caller.tenant;
  RETURN_IF_ERROR(CheckMayList(caller, owner));
  Removed removed(*this);
  base::MutexLock lock(mu_);
  RemoveExpired(removed);
  const auto found =
      table_.List(after, at_most, [&](const Record& record) { return record.tenant == owner; });
  Page page{.sessions = {}, .next = found.next};
  for (const RecordPtr& record : found.records) page.sessions.push_back(InfoOf(*record));
  return page;
}

absl::StatusOr<SessionAppended> SessionRegistry::Append(const SessionAppend& append) {
  ASSIGN_OR_RETURN(const std::optional<SessionAppended> earlier, FindAppend(append));
  if (earlier.has_value()) return *earlier;
  ASSIGN_OR_RETURN(const std::unique_ptr<SessionTurn> turn,
                   BeginTurn(append.caller.tenant, append.name, append.etag, [] {}));
  ASSIGN_OR_RETURN(SessionSeam::Extended extended,
                   seam_.Extend(turn->before(), append.content, /*generates=*/false));
  RETURN_IF_ERROR(turn->ReserveBytes(extended.content.num_bytes()));
  return turn->Commit(std::move(extended.content), extended.kept_tokens, append);
}

absl::StatusOr<std::optional<SessionAppended>> SessionRegistry::FindAppend(
    const SessionAppend& append) {
  RETURN_IF_ERROR(CheckLength("request_id", append.request_id, kMostRequestIdBytes));
  Removed removed(*this);
  base::MutexLock lock(mu_);
  RemoveExpired(removed);
  const RecordPtr record = Find(append.caller, append.name, /*for_operators=*/false);
  if (record == nullptr) return NoSuchSession();
  ASSIGN_OR_RETURN(const AppendReplay* const replay, FindReplay(*record, append));
  if (replay == nullptr) return std::nullopt;
  return replay->result;
}

absl::StatusOr<std::vector<SessionInfo>> SessionRegistry::Fork(const SessionFork& fork) {
  RETURN_IF_ERROR(CheckLength("request_id", fork.request_id, kMostRequestIdBytes));
  if (fork.count < 1 || fork.count > kMaxForkCount) {
    return absl::InvalidArgumentError(
        absl::StrFormat("count: want 1..%d, got %d", kMaxForkCount, fork.count));
  }
  if (fork.ttl.has_value()) RETURN_IF_ERROR(CheckTtl(*fork.ttl));
  RETURN_IF_ERROR(CheckMayPin(fork.pinned.value_or(false)));
  Removed removed(*this);
  base::MutexLock lock(mu_);
  RemoveExpired(removed);
  const RecordPtr parent = Find(fork.caller, fork.name, /*for_operators=*/false);
  if (parent == nullptr) return NoSuchSession();
  std::vector<SessionInfo> children;
  if (!fork.request_id.empty()) {
    for (const ForkReplay& replay : parent->forks) {
      ASSIGN_OR_RETURN(const bool again, Matches(replay.given, fork.request_id, HashOf(fork)));
      if (!again) continue;
      for (const std::string& name : replay.children) {
        const RecordPtr child = Find(fork.caller, name, /*for_operators=*/false);
        if (child == nullptr) {
          return absl::NotFoundError("request_id: a session that it made has ended");
        }
        children.push_back(InfoOf(*child));
      }
      return children;
    }
  }
  const int64_t num_tokens = parent->content->num_tokens();
  const int64_t at_token = fork.at_token.value_or(num_tokens);
  if (at_token < 0 || at_token > num_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "at_token: want 0..%d, the session's tokens, got %d", num_tokens, at_token));
  }
  RETURN_IF_ERROR(CheckRoom(parent->tenant, parent->limits, fork.count));
  const auto content = std::make_shared<const SessionContent>(parent->content->First(at_token));
  RETURN_IF_ERROR(CheckBytes(parent->tenant, parent->limits, fork.count * content->num_bytes()));
  const bool pinned = fork.pinned.value_or(parent->pin != nullptr);
  ForkPins pins;
  if (pinned) {
    ASSIGN_OR_RETURN(pins, ReserveForkPins(*parent, at_token, fork.count));
  }
  std::vector<RecordPtr> added;
  for (int32_t i = 0; i < fork.count; ++i) {
    added.push_back(Add({{.tenant = parent->tenant,
                          .salt = parent->salt,
                          .display_name = parent->display_name,
                          .ttl = fork.ttl.value_or(parent->ttl)},
                         parent->prefix_name,
                         parent->limits,
                         0,
                         content},
                        pinned));
  }
  if (!pins.blocks.empty()) PinForks(*parent, pins, added);
  ForkReplay replay{.given = {fork.request_id, HashOf(fork), clock_.Now()}, .children = {}};
  for (const RecordPtr& child : added) {
    replay.children.push_back(child->name);
    children.push_back(InfoOf(*child));
  }
  if (!fork.request_id.empty()) {
    if (parent->forks.size() == kMostReplays) parent->forks.pop_front();
    parent->forks.push_back(std::move(replay));
  }
  return children;
}

absl::Status SessionRegistry::Close(const ContextCaller& caller, std::string_view name) {
  Removed removed(*this);
  std::function<void()> cancel;
  {
    base::MutexLock lock(mu_);
    RemoveExpired(removed);
    const RecordPtr record = Find(caller, name, /*for_operators=*/true);
    if (record == nullptr) return absl::OkStatus();
    Remove(record);
    removed.records.push_back(record);
    cancel = record->cancel;
  }
  if (cancel) cancel();  // without the lock, since it wakes the step thread
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SessionTurn>> SessionRegistry::BeginTurn(
    std::string_view tenant, std::string_view name, std::string_view etag,
    std::function<void()> cancel) {
  Removed removed(*this);
  base::MutexLock lock(mu_);
  RemoveExpired(removed);
  const RecordPtr record = Find({.tenant = std::string(tenant)}, name, /*for_operators=*/false);
  if (record == nullptr) return NoSuchSession();
  if (record->in_turn) return InTurn();
  RETURN_IF_ERROR(CheckEtag(*record, etag));
  table_.SetEndAfter(*record, record->ttl);
  table_.SetTimer(*record, absl::InfiniteFuture());  // the end of the turn sets one
  record->in_turn = true;
  record->cancel = std::move(cancel);
  return std::unique_ptr<SessionTurn>(new SessionTurn(*this, record->name, record->tenant,
                                                      record->content, record->salt, record->pin));
}

SessionRegistry::Record* SessionRegistry::RecordOf(const std::string& name) const {
  if (const RecordPtr record = table_.Find(name); record != nullptr) return record.get();
  const auto it = ending_.find(name);
  return it == ending_.end() ? nullptr : it->second.get();
}

absl::Status SessionRegistry::ReserveBytes(SessionTurn& turn, int64_t num_bytes) {
  const int64_t more = std::max(int64_t{0}, num_bytes - turn.before_->num_bytes());
  base::MutexLock lock(mu_);
  const Record* const record = RecordOf(turn.name_);
  RETURN_IF_ERROR(
      CheckBytes(turn.tenant_, record == nullptr ? TenantLimits() : record->limits, more));
  turn.num_bytes_ = more;
  num_bytes_.Take(turn.tenant_, more);
  return absl::OkStatus();
}

SessionInfo SessionRegistry::EndTurn(const SessionTurn& turn,
                                     std::shared_ptr<const SessionContent> after, bool is_turn,
                                     const SessionAppend* append, int64_t kept_tokens) {
  std::function<void()> cancel;  // ends without the lock
  Removed removed(*this);
  base::MutexLock lock(mu_);
  num_bytes_.GiveBack(turn.tenant_, turn.num_bytes_);
  Record* const found = RecordOf(turn.name_);
  if (found == nullptr) return {};  // closed
  Record& record = *found;
  record.in_turn = false;
  cancel.swap(record.cancel);
  SettlePin(record, turn, after != nullptr);
  if (const auto it = ending_.find(turn.name_); it != ending_.end()) {
    removed.records.push_back(std::move(it->second));
    ending_.erase(it);
    return {};
  }
  Refresh(record);
  if (after == nullptr) return InfoOf(record);
  num_bytes_.GiveBack(record.tenant, record.num_bytes);
  record.num_bytes = after->num_bytes();
  num_bytes_.Take(record.tenant, record.num_bytes);
  record.content.swap(after);  // the old content may end after the lock, with `after`
  ++record.version;
  record.num_turns += is_turn ? 1 : 0;
  SessionInfo info = InfoOf(record);
  if (append != nullptr && !append->request_id.empty()) {
    if (record.appends.size() == kMostReplays) record.appends.pop_front();
    record.appends.push_back({.given = {append->request_id, HashOf(*append), clock_.Now()},
                              .result = {.session = info, .kept_tokens = kept_tokens}});
  }
  return info;
}

absl::Time SessionRegistry::RunTimers() {
  Removed removed(*this);
  base::MutexLock lock(mu_);
  RemoveExpired(removed);
  return table_.next_timer();
}

SessionCounts SessionRegistry::Counts() const {
  SessionCounts counts;
  for (size_t i = 0; i < turns_.size(); ++i) {
    counts.turns[i] = turns_[i].load(std::memory_order_relaxed);
  }
  base::MutexLock lock(mu_);
  counts.num_open = std::ssize(table_.records());
  return counts;
}

int64_t SessionRegistry::num_bytes() const {
  base::MutexLock lock(mu_);
  return num_bytes_.total();
}

absl::Status SessionRegistry::NoSuchSession() {
  return absl::NotFoundError(
      "name: you have no such session; it may have been closed, or have expired");
}

SessionRegistry::RecordPtr SessionRegistry::Find(const ContextCaller& caller, std::string_view name,
                                                 bool for_operators) const {
  const RecordPtr record = table_.Find(name);
  if (record == nullptr) return nullptr;
  const bool allowed = record->tenant == caller.tenant || (for_operators && caller.is_operator);
  return allowed ? record : nullptr;
}

SessionInfo SessionRegistry::InfoOf(const Record& record) const {
  return {.name = record.name,
          .display_name = record.display_name,
          .tenant = record.tenant,
          .prefix_name = record.prefix_name,
          .num_tokens = record.content->num_tokens(),
          .num_turns = record.num_turns,
          .in_turn = record.in_turn,
          .pinned = record.pin != nullptr,
          .num_pinned_blocks = record.blocks.empty() ? 0 : record.blocks[0],
          .create_time = record.create_wall,
          .expire_time = record.expires_wall,
          .ttl = record.ttl,
          .etag = record.etag()};
}

SessionRegistry::RecordPtr SessionRegistry::Add(Record record, bool pinned) {
  const auto added = std::make_shared<Record>(std::move(record));
  table_.AddNew(added);
  if (pinned) {
    added->pin = std::make_shared<SessionPin>();
    added->pin->id = added->pin_id;
  }
  added->num_bytes = added->content->num_bytes();
  num_bytes_.Take(added->tenant, added->num_bytes);
  Refresh(*added);
  return added;
}

void SessionRegistry::Remove(const RecordPtr& record) {
  table_.Remove(record);
  num_bytes_.GiveBack(record->tenant, record->num_bytes);
  if (record->in_turn && record->pin != nullptr) ending_[record->name] = record;
}

absl::Status SessionRegistry::CheckRoom(std::string_view tenant, const TenantLimits& limits,
                                        int32_t count) const {
  if (const int64_t has = table_.num_of(tenant); has + count > kMaxSessionsPerTenant) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("sessions: want %d more, the tenant has %d of at most %d; close some",
                        count, has, kMaxSessionsPerTenant));
  }
  return table_.CheckRoom("sessions", tenant, limits, count);
}

absl::Status SessionRegistry::CheckBytes(std::string_view tenant, const TenantLimits& limits,
                                         int64_t num_bytes) const {
  return num_bytes_.Check("sessions: bytes of ids and text", tenant, limits, num_bytes);
}

void SessionRegistry::RemoveExpired(Removed& removed) {
  const absl::Time now = clock_.Now();
  while (const RecordPtr record = table_.TakeDue(now)) {
    Remove(record);
    removed.records.push_back(record);
  }
}

void SessionRegistry::Refresh(Record& record) {
  table_.SetEndAfter(record, record.ttl);
  table_.SetTimer(record, record.expires);
}

absl::StatusOr<const SessionRegistry::AppendReplay*> SessionRegistry::FindReplay(
    const Record& record, const SessionAppend& append) const {
  if (append.request_id.empty()) return nullptr;
  for (const AppendReplay& replay : record.appends) {
    ASSIGN_OR_RETURN(const bool again, Matches(replay.given, append.request_id, HashOf(append)));
    if (again) return &replay;
  }
  return nullptr;
}

absl::StatusOr<bool> SessionRegistry::Matches(const Given& given, std::string_view request_id,
                                              size_t content_hash) const {
  if (given.request_id != request_id || clock_.Now() - given.time >= kRequestIdKept) return false;
  if (given.content_hash != content_hash) return OtherRequest();
  return true;
}

}  // namespace quire::engine
