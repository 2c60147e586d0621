#pragma once

// The sessions of an engine, and their turns.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/mutex.h"
#include "base/strings.h"
#include "engine/request/sessions.h"
#include "engine/sharing/session_content.h"
#include "engine/sharing/session_seam.h"

namespace quire::engine {

class SessionRegistry;

// The right to change one session. While it exists, no other turn of the session begins. Ends
// without a change unless Commit is called. Not thread-safe, except that Close of the session may
// call `cancel` at any time until the turn has ended.
class SessionTurn {
 public:
  ~SessionTurn() { End(); }
  SessionTurn(const SessionTurn&) = delete;
  SessionTurn& operator=(const SessionTurn&) = delete;

  const SessionContent& before() const { return *before_; }
  const std::string& salt() const { return salt_; }

  // Replaces the content of the session, unless it was closed meanwhile. `is_turn`: it counts as a
  // turn, and not as an append. Returns the session as it is then. A second call, and a call after
  // End, do nothing.
  SessionInfo Commit(SessionContent after, bool is_turn);
  // As Commit for an append, whose result is kept under its request_id.
  SessionAppended Commit(SessionContent after, int64_t kept_tokens, const SessionAppend& append);
  // Ends the turn without a change. A second call does nothing.
  void End();

 private:
  friend class SessionRegistry;
  SessionTurn(SessionRegistry& registry, std::string name,
              std::shared_ptr<const SessionContent> before, std::string salt)
      : registry_(registry),
        name_(std::move(name)),
        before_(std::move(before)),
        salt_(std::move(salt)) {}

  SessionRegistry& registry_;  // not owned; not used after the turn has ended
  const std::string name_;
  const std::shared_ptr<const SessionContent> before_;
  const std::string salt_;
  // Engine::FailAll may end a turn on a thread of its own.
  std::atomic<bool> ended_ = false;
};

// One mutex guards the records. Rendering, tokenizing and the end of large contents happen without
// it. A session whose time has passed is removed by the next call of any function.
class SessionRegistry final : public Sessions {
 public:
  // `seam` and `clock` must outlive this. `model` is the name of the served model.
  SessionRegistry(const SessionSeam& seam, const base::Clock& clock, std::string model)
      : seam_(seam), clock_(clock), model_(std::move(model)) {}

  absl::StatusOr<SessionInfo> Create(const SessionParams& params) override;
  absl::StatusOr<SessionInfo> Get(const SessionCaller& caller, std::string_view name) override;
  absl::StatusOr<Page> List(const SessionCaller& caller, const std::optional<std::string>& tenant,
                            uint64_t after, int32_t at_most) override;
  absl::StatusOr<SessionAppended> Append(const SessionAppend& append) override;
  absl::StatusOr<std::optional<SessionAppended>> FindAppend(const SessionAppend& append) override;
  absl::StatusOr<std::vector<SessionInfo>> Fork(const SessionFork& fork) override;
  absl::Status Close(const SessionCaller& caller, std::string_view name) override;

  // Begins a turn. If `etag` is not empty, it must be the session's. `cancel` is called if the
  // session is closed before the turn has ended; it must not call back. The registry must exist
  // until the turn has ended.
  absl::StatusOr<std::unique_ptr<SessionTurn>> BeginTurn(std::string_view tenant,
                                                         std::string_view name,
                                                         std::string_view etag,
                                                         std::function<void()> cancel);

  int64_t size();

  // The appends and forks of one session whose results are kept for their request_id.
  static constexpr size_t kMostReplays = 64;

 private:
  friend class SessionTurn;

  // The content that came with a request_id, and when.
  struct Given {
    std::string request_id;
    size_t content_hash = 0;
    absl::Time time;
  };
  struct AppendReplay {
    Given given;
    SessionAppended result;
  };
  struct ForkReplay {
    Given given;
    std::vector<std::string> children;
  };
  struct Record {
    std::string name, display_name, tenant, salt;
    uint64_t serial = 0;
    std::shared_ptr<const SessionContent> content;
    uint64_t version = 0;
    int64_t num_turns = 0;
    bool in_turn = false;
    std::function<void()> cancel;  // of the turn
    absl::Time create_time;        // by the wall clock
    absl::Duration ttl;
    absl::Time expiry;             // by clock_; without meaning in a turn
    std::optional<Given> created;  // by Create, with a request_id
    std::deque<AppendReplay> appends;
    std::deque<ForkReplay> forks;
  };
  using RecordPtr = std::shared_ptr<Record>;
  // Records that were removed. Their contents end when the caller drops the list, without mu_.
  using Removed = std::vector<RecordPtr>;

  RecordPtr Find(const SessionCaller& caller, std::string_view name, bool for_operators) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SessionInfo InfoOf(const Record& record) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  RecordPtr Add(Record record, absl::Duration ttl) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckRoom(std::string_view tenant, int32_t count) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveExpired(Removed& removed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refresh(Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns nullptr if no append came with this id in the last hour.
  absl::StatusOr<const AppendReplay*> FindReplay(const Record& record,
                                                 const SessionAppend& append) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<bool> Matches(const Given& given, std::string_view request_id,
                               size_t content_hash) const;
  // Ends a turn. Without `after`, nothing changes. Returns the session as it is then.
  SessionInfo EndTurn(const SessionTurn& turn, std::shared_ptr<const SessionContent> after,
                      bool is_turn, const SessionAppend* append, int64_t kept_tokens);

  const SessionSeam& seam_;
  const base::Clock& clock_;
  const std::string model_;

  mutable base::Mutex mu_;
  std::map<uint64_t, RecordPtr> records_ ABSL_GUARDED_BY(mu_);  // by serial
  std::unordered_map<std::string, RecordPtr, base::StringHash, std::equal_to<>> by_name_
      ABSL_GUARDED_BY(mu_);
  std::map<std::string, int32_t, std::less<>> num_by_tenant_ ABSL_GUARDED_BY(mu_);
  // By tenant and request_id.
  std::map<std::pair<std::string, std::string>, RecordPtr> created_ ABSL_GUARDED_BY(mu_);
  uint64_t next_serial_ ABSL_GUARDED_BY(mu_) = 1;
  absl::Time next_expiry_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // none is earlier
};

}  // namespace quire::engine
