#pragma once

// The sessions of an engine, and their turns.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
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
#include "engine/admission/cache_ledger.h"
#include "engine/admission/step_channel.h"
#include "engine/request/sessions.h"
#include "engine/request/shared_limit.h"
#include "engine/sharing/context_table.h"
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
  // Null unless the session is pinned. While the turn runs, the pin holds the tokens that the last
  // turn committed.
  const std::shared_ptr<SessionPin>& pin() const { return pin_; }

  // Counts the memory of the content to come. ResourceExhausted: all sessions together have too
  // much. Called at most once, before Commit.
  absl::Status ReserveBytes(int64_t num_bytes);
  // The tokens that a turn of a pinned session may pin.
  struct Pins {
    int64_t num_kept = 0;  // the leading ones that the session had before
    int64_t at_least = 0;  // if the turn succeeds
    int64_t at_most = 0;
  };
  // Counts as pinned what the turn may pin. Returns the errors of CacheLedger::Pin. Called at most
  // once, before Commit.
  absl::Status ReservePin(const Pins& pins);

  // Replaces the content of the session, unless it was closed meanwhile. `is_turn`: it counts as a
  // turn, and not as an append. Returns the session as it is then. A second call, and a call after
  // End, do nothing.
  SessionInfo Commit(SessionContent after, bool is_turn);
  // Counts the end of a turn; appends do not count.
  void CountEnd(const absl::Status& status);
  // As Commit for an append, whose result is kept under its request_id.
  SessionAppended Commit(SessionContent after, int64_t kept_tokens, const SessionAppend& append);
  // Ends the turn without a change. A second call does nothing.
  void End();

 private:
  friend class SessionRegistry;
  SessionTurn(SessionRegistry& registry, std::string name, std::string tenant,
              std::shared_ptr<const SessionContent> before, std::string salt,
              std::shared_ptr<SessionPin> pin)
      : registry_(registry),
        name_(std::move(name)),
        tenant_(std::move(tenant)),
        before_(std::move(before)),
        salt_(std::move(salt)),
        pin_(std::move(pin)) {}

  SessionRegistry& registry_;  // not owned; not used after the turn has ended
  const std::string name_;
  const std::string tenant_;
  const std::shared_ptr<const SessionContent> before_;
  const std::string salt_;
  const std::shared_ptr<SessionPin> pin_;
  int64_t num_bytes_ = 0;            // reserved
  std::vector<int64_t> num_blocks_;  // reserved beyond those of the session, by KV group
  // Engine::FailAll may end a turn on a thread of its own.
  std::atomic<bool> ended_ = false;
};

// The registry's needs of its engine. All but `model` may be empty: there are then no named
// prefixes, or no session can be pinned.
struct SessionRegistryConfig {
  std::string model;         // the served one
  std::string model_digest;  // see files/model_digest.h
  int64_t max_bytes = kMaxSessionBytes;
  // Returns the content of a prefix that the tenant may use; see PrefixRegistry::Resolve.
  std::function<absl::StatusOr<std::shared_ptr<const PrefixContent>>(const ContextCaller& caller,
                                                                     std::string_view name)>
      resolve_prefix = {};
  CacheLedger* ledger = nullptr;  // must outlive the registry
  int32_t block_size = 0;
  // Returns the blocks, by KV group, that a pin of so many tokens holds.
  std::function<std::vector<int64_t>(int64_t num_tokens)> blocks_of = {};
  // Ends a pin, if it is there, and then calls `done`, on the step thread.
  std::function<void(uint64_t pin, std::function<void()> done)> unpin = {};
  // Sends the command to the step thread. Called under the lock, so that no turn of a fork comes
  // before it. Must not call back.
  std::function<void(ForkPinCommand fork)> fork_pin = {};
  // Called when RunTimers has something to do earlier than it said. Must not call back.
  std::function<void()> on_earlier_timer = {};
};

// One mutex guards the records. Rendering, tokenizing and the end of large contents happen without
// it. A session whose time has passed is removed by RunTimers, or by the next call of any function.
//
// A pinned session counts its blocks in the ledger: those of its last turn, and during a turn also
// those that the turn may add. The step thread changes the pin when a turn succeeds, before the
// turn's end. A session that ends during a turn is unpinned when the turn has ended. Blocks that
// several sessions pin, as forks do, count for each of them.
class SessionRegistry final : public Sessions {
 public:
  // `seam` and `clock` must outlive this.
  SessionRegistry(const SessionSeam& seam, const base::Clock& clock, SessionRegistryConfig config)
      : seam_(seam),
        clock_(clock),
        config_(std::move(config)),
        table_(clock, {.collection = "sessions",
                       .most = kMaxSessions,
                       .first_pin = kFirstSessionPin,
                       .on_earlier_timer = config_.on_earlier_timer}),
        num_bytes_(config_.max_bytes) {}

  absl::StatusOr<SessionInfo> Create(const SessionParams& params) override;
  absl::StatusOr<SessionInfo> Get(const ContextCaller& caller, std::string_view name) override;
  absl::StatusOr<SessionInfo> GetWithContent(const ContextCaller& caller,
                                             std::string_view name) override;
  absl::StatusOr<Page> List(const ContextCaller& caller, const std::optional<std::string>& tenant,
                            uint64_t after, int32_t at_most) override;
  absl::StatusOr<SessionAppended> Append(const SessionAppend& append) override;
  absl::StatusOr<std::optional<SessionAppended>> FindAppend(const SessionAppend& append) override;
  absl::StatusOr<std::vector<SessionInfo>> Fork(const SessionFork& fork) override;
  absl::Status Close(const ContextCaller& caller, std::string_view name) override;

  // Begins a turn. If `etag` is not empty, it must be the session's. `cancel` is called if the
  // session is closed before the turn has ended; it must not call back. The registry must exist
  // until the turn has ended.
  absl::StatusOr<std::unique_ptr<SessionTurn>> BeginTurn(std::string_view tenant,
                                                         std::string_view name,
                                                         std::string_view etag,
                                                         std::function<void()> cancel);

  // Ends the sessions whose time has passed. Returns the time before which no other one ends.
  absl::Time RunTimers();
  SessionCounts Counts() const;
  // The memory of all contents, as if none were shared.
  int64_t num_bytes() const;

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
  // The version is of the content. The end is counted from the begin of a turn while one runs, and
  // does not hold.
  struct Record : Context {
    std::string prefix_name;
    TenantLimits limits;      // of the tenant, when the session was created
    size_t created_hash = 0;  // of what came with the request_id
    std::shared_ptr<const SessionContent> content;
    int64_t num_turns = 0;
    bool in_turn = false;
    std::function<void()> cancel;     // of the turn
    int64_t num_bytes = 0;            // of the content
    std::shared_ptr<SessionPin> pin;  // null unless it is pinned
    std::deque<AppendReplay> appends;
    std::deque<ForkReplay> forks;
  };
  using RecordPtr = std::shared_ptr<Record>;
  // Records that were removed. They are unpinned, and their contents end, when this ends, without
  // mu_: it must be declared before the lock.
  struct Removed {
    explicit Removed(SessionRegistry& owner) : registry(owner) {}
    ~Removed() {
      for (const RecordPtr& record : records) registry.Unpin(*record);
    }
    SessionRegistry& registry;
    std::vector<RecordPtr> records;
  };

  static absl::Status NoSuchSession();
  RecordPtr Find(const ContextCaller& caller, std::string_view name, bool for_operators) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SessionInfo InfoOf(const Record& record) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  RecordPtr Add(Record record, bool pinned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckMayPin(bool pinned) const;
  void Remove(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckBytes(std::string_view tenant, const TenantLimits& limits,
                          int64_t num_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckRoom(std::string_view tenant, const TenantLimits& limits, int32_t count) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveExpired(Removed& removed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refresh(Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns nullptr if no append came with this id in the last hour.
  absl::StatusOr<const AppendReplay*> FindReplay(const Record& record,
                                                 const SessionAppend& append) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<bool> Matches(const Given& given, std::string_view request_id,
                               size_t content_hash) const;
  absl::Status ReserveBytes(SessionTurn& turn, int64_t num_bytes);
  // Returns the record of a session, which may have ended in a turn; null: it is gone.
  Record* RecordOf(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // In session_registry_content.cc.
  // Returns the content with which a session begins. `prefix` may be null.
  absl::StatusOr<SessionContent> FirstContent(const SessionParams& params,
                                              std::shared_ptr<const PrefixContent> prefix) const;

  // In session_registry_pins.cc: what the ledger counts for pinned sessions.
  absl::Status ReservePin(SessionTurn& turn, const SessionTurn::Pins& pins);
  // Sets what the ledger counts for a session when a turn has ended.
  void SettlePin(Record& record, const SessionTurn& turn, bool succeeded)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives back what a record that is gone has pinned, unless a turn runs.
  void Unpin(Record& record) ABSL_LOCKS_EXCLUDED(mu_);
  // What the pins of forks hold from the start: the leading tokens of their parent's pin.
  struct ForkPins {
    int64_t num_tokens = 0;
    std::vector<int64_t> blocks;  // counted for each fork, by KV group; empty: none
  };
  // Counts what the pins of `count` forks hold. Returns the errors of CacheLedger::Pin.
  absl::StatusOr<ForkPins> ReserveForkPins(const Record& parent, int64_t at_token, int32_t count)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the forks of `parent`, which have their pins, what was reserved.
  void PinForks(const Record& parent, const ForkPins& reserved,
                const std::vector<RecordPtr>& children) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives back what was reserved for those of the forks that could not be pinned.
  void SettleForkPins(const std::vector<std::string>& names, const std::vector<int64_t>& blocks);

  // Ends a turn. Without `after`, nothing changes. Returns the session as it is then.
  SessionInfo EndTurn(const SessionTurn& turn, std::shared_ptr<const SessionContent> after,
                      bool is_turn, const SessionAppend* append, int64_t kept_tokens);

  const SessionSeam& seam_;
  const base::Clock& clock_;
  const SessionRegistryConfig config_;
  std::array<std::atomic<int64_t>, 3> turns_{};  // by TurnResult

  mutable base::Mutex mu_;
  ContextTable<Record> table_ ABSL_GUARDED_BY(mu_);  // those in no turn have a timer
  // Pinned sessions that ended while a turn ran, until it has ended; by name.
  std::unordered_map<std::string, RecordPtr, base::StringHash, std::equal_to<>> ending_
      ABSL_GUARDED_BY(mu_);
  SharedLimit num_bytes_ ABSL_GUARDED_BY(mu_);  // of all records, and reserved by turns
};

}  // namespace quire::engine
