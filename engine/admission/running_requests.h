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
// the running requests of its owner. Afterwards the id may be used again. Owners neither learn of
// nor block each other's ids. Thread-safe; bounded by admission.
class RunningRequests {
 public:
  // Inserts a request under params.owner and params.request_id, which must not change. The id must
  // not be empty. Returns AlreadyExists if a request with this owner and id runs, and Unavailable
  // after TakeAll.
  absl::Status Insert(std::shared_ptr<Request> request);

  // Removes a request. Called when the request ends for any reason. Returns false if the request is
  // not in here.
  bool Erase(const Request& request);

  // Sets the flag `cancelled` of the request that `owner` runs under `request_id`. Without an
  // owner, sets the flag of all requests that run under this id, whoever owns them. Returns the
  // requests whose flag was set. The caller must notify the step thread of them. Returns NotFound
  // when no such request runs.
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
  // The request's id and its owner. The id comes first, so that requests of one id are adjacent.
  // Both are views of strings in the request.
  using Key = std::pair<std::string_view, std::string_view>;

  static Key KeyOf(const Request& request) {
    return {request.params.request_id, request.params.owner};
  }

  mutable base::Mutex mu_;
  mutable base::CondVar became_idle_;
  std::map<Key, std::shared_ptr<Request>> requests_ ABSL_GUARDED_BY(mu_);
  bool steps_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace quire::engine
