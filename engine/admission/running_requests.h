#pragma once

// The requests that have not finished, by id.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "engine/request/request.h"

namespace quire::engine {

// Holds requests from submission to the sink's Finish. An id is a key or a name
// (GenerateParams::id_is_name). An owner runs one request at a time under a key: a second one waits
// while the first ends, and is refused if the first goes on. Names keep nobody out, and a key may
// equal a name. Owners neither learn of nor block each other's ids. Thread-safe; bounded by
// admission.
class RunningRequests {
 public:
  // Starts a request that waited, after OK, or ends it with the error. Called once, without a lock,
  // by whoever ends the wait.
  using EndWait = std::function<void(const absl::Status&)>;

  // How long a request waits for the cancellation of another one that has its key. A server learns
  // of a client's reset a moment after the client may have sent the next request.
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  // Inserts a request under params.owner and params.request_id, which must not change, and sets its
  // id. The id must not be empty. Returns Unavailable after TakeAll.
  absl::Status Insert(std::shared_ptr<Request> request);

  // Returns false if no request that was inserted before has the key of `request`. Otherwise
  // returns true, and calls `end` later: with OK when none has it any more; with AlreadyExists if
  // after kPatience one has it that is neither cancelled nor past its deadline; with Cancelled or
  // DeadlineExceeded if `request` itself is.
  bool Wait(const Request& request, absl::Time now, EndWait end);
  // Ends the wait of a request that was cancelled. Does nothing if it does not wait.
  void StopWaiting(const Request& request);
  // Ends the waits whose time has come. Returns when it must be called again.
  absl::Time RunTimers(absl::Time now);

  // Removes a request. Called when the request ends for any reason. Returns false if the request is
  // not in here.
  bool Erase(const Request& request);

  // Cancels the requests that `owner` runs under the key, the name or the id `request_id`. Without
  // an owner, cancels all requests that run under it, whoever owns them. Returns the requests that
  // were cancelled. The caller must notify the step thread of them. Returns NotFound when no such
  // request runs.
  absl::StatusOr<std::vector<std::shared_ptr<const Request>>> Abort(
      std::string_view request_id, std::optional<std::string_view> owner);

  // Removes and returns all requests, which somebody else than the step thread will end. From then
  // on none can be inserted.
  std::vector<std::shared_ptr<Request>> TakeAll();

  // Cancels all requests, when the engine ends.
  void CancelAll();

  // Records whether steps are in flight, for WaitUntilIdle. A step in flight may hold blocks of
  // requests that have ended.
  void SetStepsInFlight(bool in_flight);

  int64_t size() const;
  // Waits until no request runs and no step is in flight. Returns false if `timeout` passes first.
  bool WaitUntilIdle(absl::Duration timeout) const;

 private:
  // The request's key or name and its owner. The former comes first, so that requests of one id are
  // adjacent. Both are views of strings in the request.
  using Key = std::pair<std::string_view, std::string_view>;
  struct Entry {
    std::shared_ptr<Request> request;
    EndWait end_wait = nullptr;  // set while the request waits for its key
    absl::Time patience = {};    // until then it waits for a request that goes on
  };
  using Entries = std::multimap<Key, Entry>;  // of one key, the first that came first
  // Waits that have ended, and how. They are called after the lock is released.
  using Ended = std::vector<std::pair<EndWait, absl::Status>>;

  static Key KeyOf(const Request& request) {
    return {request.params.request_id, request.params.owner};
  }
  static void Call(const Ended& ended);

  Entries::iterator Find(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the first request that was inserted before `entry` and has its key; null: none has.
  const Request* Predecessor(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(Entry& entry, const absl::Status& status, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable base::Mutex mu_;
  mutable base::CondVar became_idle_;
  Entries requests_ ABSL_GUARDED_BY(mu_);
  int64_t num_waiting_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_suffixes_ ABSL_GUARDED_BY(mu_) = 0;
  bool steps_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace quire::engine
