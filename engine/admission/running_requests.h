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

// From submission to the sink's Finish. An id is known once among its owner's while its request
// runs, and may be used again after: nobody finds out, or takes, ids of others. Thread-safe;
// bounded by what admission lets in.
class RunningRequests {
 public:
  // Under params.owner and params.request_id, which must not change; the id must not be empty.
  // AlreadyExists: one runs.
  absl::Status Insert(std::shared_ptr<Request> request);

  // When the request ends, however; nothing happens when it is not in it.
  void Erase(const Request& request);

  // Sets `cancelled` and returns those that the caller is to have the step thread notice. Without an
  // owner: all that run under the id, whoever's they are. NotFound when there is none, and just so
  // when it is another's.
  absl::StatusOr<std::vector<std::shared_ptr<const Request>>> Abort(
      std::string_view request_id, std::optional<std::string_view> owner);

  // All of them, for the end of the engine.
  void CancelAll();

  int64_t size() const;
  // Whether nothing runs, at once or within `timeout`.
  bool WaitUntilEmpty(absl::Duration timeout) const;

 private:
  // Id first: those of one id stand together. Views of the request's own strings.
  using Key = std::pair<std::string_view, std::string_view>;

  static Key KeyOf(const Request& request) {
    return {request.params.request_id, request.params.owner};
  }

  mutable base::Mutex mu_;
  mutable base::CondVar emptied_;
  std::map<Key, std::shared_ptr<Request>> requests_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::engine
