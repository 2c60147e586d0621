#pragma once

// Sessions: token sequences that grow turn by turn. A turn is a request that continues the tokens
// of its session. The generated ids become part of the session as they were drawn, so no later turn
// tokenizes them again.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/request/contexts.h"
#include "engine/request/request.h"
#include "engine/request/session_counts.h"

namespace quire::engine {

inline constexpr int32_t kMaxSessions = 1024;
inline constexpr int32_t kMaxSessionsPerTenant = 256;
inline constexpr int32_t kMaxForkCount = 64;
// The memory of ids, messages and text of all sessions together. A turn adds its output to it at
// its end, so it may be exceeded by the output of the turns that run.
inline constexpr int64_t kMaxSessionBytes = int64_t{256} << 20;
// The pins of sessions are this and more, those of named prefixes are less; see CacheMap.
inline constexpr uint64_t kFirstSessionPin = uint64_t{1} << 63;
inline constexpr absl::Duration kMinSessionTtl = absl::Seconds(10);
inline constexpr absl::Duration kMaxSessionTtl = absl::Hours(24);

// All that a session has behind its prefix. Create makes the session again of it, on any server of
// the same model.
struct SessionCopy {
  TokenIds ids;
  // The messages that the tokens are, without those of the prefix and without the answer to the
  // last. Absent: the tokens are no conversation.
  std::optional<ChatMessages> messages;
  // The number of last ids that were generated as the answer. Absent: no answer has begun.
  std::optional<int64_t> answer_len;
  std::string content_sha256;  // 32 bytes: of the model's digest and all ids, the prefix's first
};

struct SessionParams {
  ContextCaller caller;
  std::string model;         // empty: the served model
  std::string prefix_name;   // the session begins with its tokens; empty: with none
  std::string display_name;  // at most 128 bytes
  bool pinned = false;       // what a turn computed stays pinned until the session ends
  // The session ends when no turn has run for this long: kMinSessionTtl..kMaxSessionTtl.
  absl::Duration ttl = absl::Minutes(10);
  std::string salt;  // as CacheParams::salt, of all turns
  // If not empty, the same id within an hour gives the same session. At most 36 bytes.
  std::string request_id;
  std::optional<SessionCopy> content;  // the session begins with it, behind its prefix
};

struct SessionInfo {
  std::string name;  // "sessions/" and 26 characters of base32
  std::string display_name;
  std::string tenant;       // the owner
  std::string prefix_name;  // with whose tokens it began; empty: with none
  int64_t num_tokens = 0;
  int64_t num_turns = 0;  // turns that succeeded
  bool in_turn = false;
  bool pinned = false;
  int64_t num_pinned_blocks = 0;  // of group 0, that count as pinned for it
  absl::Time create_time;         // these two by the wall clock
  absl::Time expire_time;
  absl::Duration ttl;
  std::string etag;                    // differs after each change of the tokens
  std::optional<SessionCopy> content;  // set by GetWithContent alone
};

struct SessionAppend {
  ContextCaller caller;
  std::string name;
  PromptContent content;
  std::string etag;  // if not empty, must be the current one
  std::string
      request_id;  // if not empty, the same id within an hour appends once; at most 36 bytes
};

struct SessionAppended {
  SessionInfo session;
  // The leading tokens that the session had before and still has. Fewer than all of them only if a
  // chat template renders the earlier messages differently now.
  int64_t kept_tokens = 0;
};

struct SessionFork {
  ContextCaller caller;
  std::string name;
  std::optional<int64_t> at_token;    // 0..num_tokens; absent: all
  int64_t count = 1;                  // 1..kMaxForkCount
  std::optional<absl::Duration> ttl;  // absent: that of the parent
  // If true, the children are pinned sessions. Those of a pinned parent hold the leading tokens of
  // its pin at once. Absent: as the parent.
  std::optional<bool> pinned;
  std::string request_id;  // if not empty, the same id within an hour gives the same children
};

// The sessions of one engine. They end with the engine. Thread-safe. No function waits, and only
// Append, GetWithContent and Create with a content take longer than a look-up. A turn is a
// GenerateParams with a session name.
//
// Errors: NotFound for a name that does not exist, has ended, or belongs to another tenant, with
// one text for all three. Aborted when an etag differs, or when a turn runs. ResourceExhausted
// beyond kMaxSessions, kMaxSessionsPerTenant and kMaxSessionBytes, beyond the tenant's part of them
// (see SharedLimit), and when too many blocks would be pinned, with what was wanted, what there is
// and the limit. InvalidArgument for a value out of range, and for a request_id that came with
// other content. FailedPrecondition for a content of another model or prefix.
class Sessions {
 public:
  virtual ~Sessions() = default;

  // With a content of messages, renders the chat template on the thread of the caller, where a
  // base::Interrupt may stop it early.
  virtual absl::StatusOr<SessionInfo> Create(const SessionParams& params) = 0;
  virtual absl::StatusOr<SessionInfo> Get(const ContextCaller& caller, std::string_view name) = 0;
  // Returns the session and its content, without what a turn that runs adds. PermissionDenied for
  // an operator of another tenant, and on a prefix of messages of another tenant.
  // FailedPrecondition if the session does not begin with all tokens of its prefix any more.
  virtual absl::StatusOr<SessionInfo> GetWithContent(const ContextCaller& caller,
                                                     std::string_view name) = 0;

  struct Page {
    std::vector<SessionInfo> sessions;  // in the order of creation
    uint64_t next = 0;                  // the cursor of the next page; 0: there is none
  };
  // Lists the sessions of `tenant`; absent: of the caller's tenant. Returns PermissionDenied if a
  // caller that is no operator names another tenant. `after` is 0 or a cursor of the page before.
  virtual absl::StatusOr<Page> List(const ContextCaller& caller,
                                    const std::optional<std::string>& tenant, uint64_t after,
                                    int32_t at_most) = 0;

  // Adds tokens, whose K and V the next turn computes. Tokenizes on the thread of the caller, where
  // a base::Interrupt may stop it early.
  virtual absl::StatusOr<SessionAppended> Append(const SessionAppend& append) = 0;
  // Returns the result of an earlier append with the same request_id; nullopt if there is none.
  virtual absl::StatusOr<std::optional<SessionAppended>> FindAppend(
      const SessionAppend& append) = 0;

  // Makes sessions that begin with the first at_token tokens of a session. A turn that runs does
  // not count. Copies no token.
  virtual absl::StatusOr<std::vector<SessionInfo>> Fork(const SessionFork& fork) = 0;

  // Ends a session and cancels its turn. A session that does not exist is no error.
  virtual absl::Status Close(const ContextCaller& caller, std::string_view name) = 0;
};

}  // namespace quire::engine
