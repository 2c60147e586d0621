#pragma once

// Named prefixes: token sequences whose K and V stay in the cache until a time that their owner
// sets. Any number of requests may begin with one.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/request/contexts.h"
#include "engine/request/request.h"

namespace quire::engine {

inline constexpr int32_t kMaxPrefixes = 4096;  // of one engine

enum class PrefixState {
  kComputing,
  kReady,   // all its blocks are in memory, and stay there
  kFailed,  // could not be computed; forgotten a minute later
  kCold,    // known from before a restart, and not in memory; a use or Warm() brings it back
};
inline constexpr size_t kNumPrefixStates = 4;

// Either an end, or a time to live. The end is a time of the wall clock.
using PrefixExpiration = std::variant<absl::Duration, absl::Time>;

struct PrefixParams {
  ContextCaller caller;
  std::string model;  // empty: the served model
  PromptContent content;
  std::string display_name;  // at most 128 bytes
  PrefixExpiration expiration = absl::Hours(1);
  bool refresh_on_hit = false;  // each use sets the end to now + ttl
  // The tenants beside the owner that may use the prefix, at most 256; "*": all.
  std::vector<std::string> allowed_tenants;
  std::string salt;
  // If not empty, the same id within an hour gives the same prefix. At most 36 bytes.
  std::string request_id;
};

struct PrefixInfo {
  uint64_t pin = 0;  // of its blocks, for CacheMap; not for clients
  std::string name;  // "prefixes/" and 26 characters of base32
  std::string display_name;
  PrefixState state = PrefixState::kComputing;
  absl::Status error;  // of a failed prefix
  std::string tenant;  // the owner
  int64_t num_tokens = 0;
  int64_t num_blocks = 0;      // pinned
  int64_t kv_bytes = 0;        // of these blocks, in all KV groups
  std::string content_sha256;  // 32 bytes: the hash of the model's digest and the token ids
  absl::Time create_time;      // these three by the wall clock
  absl::Time update_time;
  absl::Time expire_time;
  absl::Duration ttl;  // 0 if the prefix was given an end
  bool refresh_on_hit = false;
  std::vector<std::string> allowed_tenants;
  std::string etag;  // differs after each update
  // Set only if the caller owns the prefix, or is an operator.
  struct Use {
    uint64_t hits = 0;
    uint64_t saved_tokens = 0;
    absl::Time last_hit_time = absl::InfinitePast();
    // What the owner is charged for the pinned blocks; 0 unless the prefix is ready. A block of
    // several prefixes counts in each.
    double charged_blocks = 0;
  };
  std::optional<Use> use;
};

// The members that are set change; the others stay.
struct PrefixUpdate {
  std::string name;
  std::string etag;  // if not empty, must be the current one
  std::optional<std::string> display_name;
  std::optional<PrefixExpiration> expiration;
  std::optional<bool> refresh_on_hit;
  std::optional<std::vector<std::string>> allowed_tenants;
};

// The prefixes of one engine. Thread-safe. No function waits.
//
// Errors: NotFound for a name that does not exist, has expired or may not be used by the caller,
// with one text for all three. PermissionDenied when an allowed tenant that is not the owner
// updates, deletes or warms. Aborted when an etag differs. ResourceExhausted beyond a quota, with
// what was wanted, what there is and the limit. InvalidArgument for what no server of this size
// could hold.
class NamedPrefixes {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<PrefixInfo>) &&>;
  virtual ~NamedPrefixes() = default;

  // Creates a prefix and returns its name at once, while its tokens are still to be computed. Calls
  // `done` once, when the prefix is ready or has failed, on any thread. After an error `done` is
  // not called.
  virtual absl::StatusOr<std::string> Create(PrefixParams params, Done done) = 0;
  virtual absl::StatusOr<PrefixInfo> Get(const ContextCaller& caller,
                                         std::string_view name) const = 0;

  struct Page {
    std::vector<PrefixInfo> prefixes;  // in the order of creation
    uint64_t next = 0;                 // the cursor of the next page; 0: there is none
  };
  // Lists prefixes that the caller may use. `tenant`: only those of this owner; only operators may
  // name another tenant. `after` is 0 or a cursor of the page before.
  virtual absl::StatusOr<Page> List(const ContextCaller& caller, std::optional<std::string> tenant,
                                    uint64_t after, int32_t at_most) const = 0;
  virtual absl::StatusOr<PrefixInfo> Update(const ContextCaller& caller,
                                            const PrefixUpdate& update) = 0;
  // Requests that run on the prefix continue. Its blocks become evictable when the last of them has
  // ended.
  virtual absl::Status Delete(const ContextCaller& caller, std::string_view name,
                              std::string_view etag) = 0;
  // Brings the prefix into memory if it is not there. Calls `done` once, on any thread.
  virtual void Warm(const ContextCaller& caller, std::string_view name, Done done) = 0;
};

}  // namespace quire::engine
