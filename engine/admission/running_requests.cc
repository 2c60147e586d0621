#include "engine/admission/running_requests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/strings.h"

namespace quire::engine {

absl::Status RunningRequests::Insert(std::shared_ptr<Request> request) {
  const std::string& id = request->params.request_id;
  QUIRE_CHECK(!id.empty()) << "a request without an id";
  base::MutexLock lock(mu_);
  if (requests_.contains(id)) {
    return absl::AlreadyExistsError(
        absl::StrCat("request_id: \"", id, "\" is running: use another one"));
  }
  requests_.emplace(id, std::move(request));
  return absl::OkStatus();
}

void RunningRequests::Erase(const Request& request) {
  std::shared_ptr<Request> last;  // dies after the lock: its sink's destructor is not ours
  base::MutexLock lock(mu_);
  const auto it = requests_.find(request.params.request_id);
  if (it == requests_.end() || it->second.get() != &request) return;
  last = std::move(it->second);
  requests_.erase(it);
  if (requests_.empty()) emptied_.NotifyAll();
}

absl::StatusOr<std::shared_ptr<const Request>> RunningRequests::Abort(std::string_view request_id,
                                                                      std::string_view owner) {
  base::MutexLock lock(mu_);
  const auto it = requests_.find(request_id);
  if (it == requests_.end() || it->second->params.owner != owner) {
    return absl::NotFoundError(
        absl::StrCat("request_id: no request of yours runs as \"", base::ToAbsl(request_id), "\""));
  }
  it->second->cancelled.store(true);
  return it->second;
}

void RunningRequests::CancelAll() {
  base::MutexLock lock(mu_);
  for (const auto& [id, request] : requests_) request->cancelled.store(true);
}

int64_t RunningRequests::size() const {
  base::MutexLock lock(mu_);
  return static_cast<int64_t>(requests_.size());
}

bool RunningRequests::WaitUntilEmpty(absl::Duration timeout) const {
  const absl::Time deadline = base::SteadyNow() + timeout;
  base::MutexLock lock(mu_);
  while (!requests_.empty()) {
    const absl::Duration left = deadline - base::SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    emptied_.WaitFor(mu_, absl::ToChronoNanoseconds(std::min(left, absl::Seconds(1))));
  }
  return true;
}

}  // namespace quire::engine
