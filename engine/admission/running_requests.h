#pragma once

// The requests that have not finished, by id.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "engine/request/request.h"

namespace quire::engine {

// From submission to the sink's Finish. An id is known once among all clients while its request
// runs, and may be used again after. Thread-safe; bounded by what admission lets in.
class RunningRequests {
 public:
  // Under params.request_id, which must not be empty and not change. AlreadyExists: one runs.
  absl::Status Insert(std::shared_ptr<Request> request);

  // When the request ends, however; nothing happens when it is not in it.
  void Erase(const Request& request);

  // Sets `cancelled`; the caller then has the step thread notice it. NotFound when nothing runs
  // under the id, and just so when it is another owner's, so that nobody can find out ids of
  // others.
  absl::StatusOr<std::shared_ptr<const Request>> Abort(std::string_view request_id,
                                                       std::string_view owner);

  // All of them, for the end of the engine.
  void CancelAll();

  int64_t size() const;
  // Whether nothing runs, at once or within `timeout`.
  bool WaitUntilEmpty(absl::Duration timeout) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };

  mutable base::Mutex mu_;
  mutable base::CondVar emptied_;
  std::unordered_map<std::string, std::shared_ptr<Request>, Hash, std::equal_to<>> requests_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::engine
