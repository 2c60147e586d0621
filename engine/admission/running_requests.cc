#include "engine/admission/running_requests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/strings.h"

namespace quire::engine {

absl::Status RunningRequests::Insert(std::shared_ptr<Request> request) {
  const Key key = KeyOf(*request);
  QUIRE_CHECK(!key.first.empty()) << "a request without an id";
  base::MutexLock lock(mu_);
  if (closed_) return absl::UnavailableError("the server ends");
  if (requests_.contains(key)) {
    return absl::AlreadyExistsError(absl::StrCat("request_id: \"", request->params.request_id,
                                                 "\" is running: use another one"));
  }
  requests_.emplace(key, std::move(request));
  return absl::OkStatus();
}

bool RunningRequests::Erase(const Request& request) {
  // `last` is declared before `lock`, so the request is destroyed after the lock is released.
  // Destroying the request may run the destructor of the sink, which is foreign code.
  std::shared_ptr<Request> last;
  base::MutexLock lock(mu_);
  const auto it = requests_.find(KeyOf(request));
  if (it == requests_.end() || it->second.get() != &request) return false;
  last = std::move(it->second);
  requests_.erase(it);
  if (requests_.empty()) became_idle_.NotifyAll();
  return true;
}

void RunningRequests::SetStepsInFlight(bool in_flight) {
  base::MutexLock lock(mu_);
  steps_in_flight_ = in_flight;
  if (!in_flight) became_idle_.NotifyAll();
}

absl::StatusOr<std::vector<std::shared_ptr<const Request>>> RunningRequests::Abort(
    std::string_view request_id, std::optional<std::string_view> owner) {
  base::MutexLock lock(mu_);
  std::vector<std::shared_ptr<const Request>> aborted;
  for (auto it = requests_.lower_bound({request_id, owner.value_or("")});
       it != requests_.end() && it->first.first == request_id; ++it) {
    if (owner.has_value() && it->first.second != *owner) break;
    it->second->cancelled.store(true);
    aborted.push_back(it->second);
  }
  if (!aborted.empty()) return aborted;
  return absl::NotFoundError(absl::StrCat("request_id: no request", owner ? " of yours" : "",
                                          " runs as \"", base::ToAbsl(request_id), "\""));
}

std::vector<std::shared_ptr<Request>> RunningRequests::TakeAll() {
  base::MutexLock lock(mu_);
  closed_ = true;
  std::vector<std::shared_ptr<Request>> taken;
  taken.reserve(requests_.size());
  for (auto& [key, request] : requests_) taken.push_back(std::move(request));
  requests_.clear();
  became_idle_.NotifyAll();
  return taken;
}

void RunningRequests::CancelAll() {
  base::MutexLock lock(mu_);
  for (const auto& [key, request] : requests_) request->cancelled.store(true);
}

int64_t RunningRequests::size() const {
  base::MutexLock lock(mu_);
  return static_cast<int64_t>(requests_.size());
}

bool RunningRequests::WaitUntilIdle(absl::Duration timeout) const {
  const absl::Time deadline = base::SteadyNow() + timeout;
  base::MutexLock lock(mu_);
  while (!requests_.empty() || steps_in_flight_) {
    const absl::Duration left = deadline - base::SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    became_idle_.WaitFor(mu_, absl::ToChronoNanoseconds(std::min(left, absl::Seconds(1))));
  }
  return true;
}

}  // namespace quire::engine
