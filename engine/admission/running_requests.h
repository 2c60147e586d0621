#pragma once

// The requests that have not finished, by id.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "engine/request/request.h"

namespace quire::engine {

// Holds requests from submission to the sink's Finish. While a request runs, its id is unique among
// those of its owner; afterwards it may be used again. Owners neither learn of nor block each
// other's ids. Thread-safe; bounded by admission.
class RunningRequests {
 public:
  // Inserts it under params.owner and params.request_id, which must not change; the id must not be
  // empty. AlreadyExists: such a request runs.
  absl::Status Insert(std::shared_ptr<Request> request);

  // Called when the request ends for any reason; does nothing if it is not in here.
  void Erase(const Request& request);

  // Sets `cancelled` and returns the requests of which the caller must notify the step thread.
  // Without an owner: all that run under the id, whoever owns them. NotFound when there is none,
  // and also when it belongs to another owner.
  absl::StatusOr<std::vector<std::shared_ptr<const Request>>> Abort(
      std::string_view request_id, std::optional<std::string_view> owner);

  // Cancels all requests, when the engine ends.
  void CancelAll();

  int64_t size() const;
  // Waits for at most `timeout`; true if nothing runs.
  bool WaitUntilEmpty(absl::Duration timeout) const;

 private:
  // The id comes first, so that requests of one id are adjacent. Views of the request's own
  // strings.
  using Key = std::pair<std::string_view, std::string_view>;

  static Key KeyOf(const Request& request) {
    return {request.params.request_id, request.params.owner};
  }

  mutable base::Mutex mu_;
  mutable base::CondVar emptied_;
  std::map<Key, std::shared_ptr<Request>> requests_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::engine
