#include "engine/admission/running_requests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/strings.h"

namespace quire::engine {
namespace {

constexpr char kSuffix[] = "~";  // between a name that is in use and a number

}  // namespace

absl::Status RunningRequests::Insert(std::shared_ptr<Request> request) {
  const Key key = KeyOf(*request);
  QUIRE_CHECK(!key.first.empty()) << "a request without an id";
  base::MutexLock lock(mu_);
  if (closed_) return absl::UnavailableError("the server ends");
  request->id = request->params.request_id;
  if (request->params.id_is_name && requests_.contains(key)) {
    absl::StrAppend(&request->id, kSuffix, ++num_suffixes_);
  }
  requests_.emplace(key, Entry{.request = std::move(request)});
  return absl::OkStatus();
}

RunningRequests::Entries::iterator RunningRequests::Find(const Request& request) {
  const auto [first, last] = requests_.equal_range(KeyOf(request));
  const auto it = std::find_if(
      first, last, [&](const auto& entry) { return entry.second.request.get() == &request; });
  return it == last ? requests_.end() : it;
}

const Request* RunningRequests::Predecessor(Entries::iterator entry) {
  for (auto it = requests_.lower_bound(entry->first); it != entry; ++it) {
    if (!it->second.request->params.id_is_name) return it->second.request.get();
  }
  return nullptr;
}

void RunningRequests::End(Entry& entry, const absl::Status& status, Ended& ended) {
  if (entry.end_wait == nullptr) return;
  ended.emplace_back(std::exchange(entry.end_wait, nullptr), status);
  --num_waiting_;
}

void RunningRequests::Call(const Ended& ended) {
  for (const auto& [end_wait, status] : ended) end_wait(status);
}

bool RunningRequests::Wait(const Request& request, absl::Time now, EndWait end) {
  if (request.params.id_is_name) return false;
  base::MutexLock lock(mu_);
  const auto it = Find(request);
  if (it == requests_.end() || Predecessor(it) == nullptr) return false;
  it->second.end_wait = std::move(end);
  it->second.patience = now + kPatience;
  ++num_waiting_;
  return true;
}

void RunningRequests::StopWaiting(const Request& request) {
  Ended ended;
  {
    base::MutexLock lock(mu_);
    const auto it = Find(request);
    if (it != requests_.end()) End(it->second, CancelledStatus(), ended);
  }
  Call(ended);
}

absl::Time RunningRequests::RunTimers(absl::Time now) {
  Ended ended;
  absl::Time next = absl::InfiniteFuture();
  {
    base::MutexLock lock(mu_);
    if (num_waiting_ == 0) return next;
    for (auto it = requests_.begin(); it != requests_.end(); ++it) {
      Entry& entry = it->second;
      if (entry.end_wait == nullptr) continue;
      absl::Status status = StillWanted(*entry.request, now);
      if (status.ok() && entry.patience <= now && StillWanted(*Predecessor(it), now).ok()) {
        status = absl::AlreadyExistsError(
            absl::StrCat("request_id: \"", entry.request->id, "\" is running: use another one"));
      }
      if (status.ok()) {
        next = std::min(next, entry.request->deadline);
        if (entry.patience > now) next = std::min(next, entry.patience);
      } else {
        End(entry, status, ended);
      }
    }
  }
  Call(ended);
  return next;
}

bool RunningRequests::Erase(const Request& request) {
  // `last` is declared before the lock, so the request is destroyed after the lock is released.
  // Destroying the request may run the destructor of the sink, which is foreign code.
  Entry last;
  Ended ended;
  {
    base::MutexLock lock(mu_);
    const auto it = Find(request);
    if (it == requests_.end()) return false;
    last = std::move(it->second);
    if (last.end_wait != nullptr) --num_waiting_;
    requests_.erase(it);
    const auto [first, end] = requests_.equal_range(KeyOf(request));
    const auto next = std::find_if(
        first, end, [](const auto& entry) { return !entry.second.request->params.id_is_name; });
    if (next != end) End(next->second, absl::OkStatus(), ended);
    if (requests_.empty()) became_idle_.NotifyAll();
  }
  Call(ended);
  return true;
}

void RunningRequests::SetStepsInFlight(bool in_flight) {
  base::MutexLock lock(mu_);
  steps_in_flight_ = in_flight;
  if (!in_flight) became_idle_.NotifyAll();
}

absl::StatusOr<std::vector<std::shared_ptr<const Request>>> RunningRequests::Abort(
    std::string_view request_id, std::optional<std::string_view> owner) {
  std::vector<std::string_view> names = {request_id};
  const size_t suffix = request_id.rfind(kSuffix);
  if (suffix != std::string_view::npos) names.push_back(request_id.substr(0, suffix));
  std::vector<std::shared_ptr<const Request>> aborted;
  Ended ended;
  {
    base::MutexLock lock(mu_);
    for (const std::string_view name : names) {
      for (auto it = requests_.lower_bound({name, owner.value_or("")});
           it != requests_.end() && it->first.first == name; ++it) {
        if (owner.has_value() && it->first.second != *owner) break;
        Entry& entry = it->second;
        if (name != request_id && entry.request->id != request_id) continue;
        entry.request->cancelled.store(true);
        End(entry, CancelledStatus(), ended);
        aborted.push_back(entry.request);
      }
    }
  }
  Call(ended);
  if (!aborted.empty()) return aborted;
  return absl::NotFoundError(absl::StrCat("request_id: no request", owner ? " of yours" : "",
                                          " runs as \"", base::ToAbsl(request_id), "\""));
}

std::vector<std::shared_ptr<Request>> RunningRequests::TakeAll() {
  Entries entries;  // what waits is destroyed without the lock
  base::MutexLock lock(mu_);
  closed_ = true;
  num_waiting_ = 0;
  entries.swap(requests_);
  std::vector<std::shared_ptr<Request>> taken;
  taken.reserve(entries.size());
  for (const auto& [key, entry] : entries) taken.push_back(entry.request);
  became_idle_.NotifyAll();
  return taken;
}

void RunningRequests::CancelAll() {
  Ended ended;
  {
    base::MutexLock lock(mu_);
    for (auto& [key, entry] : requests_) {
      entry.request->cancelled.store(true);
      End(entry, CancelledStatus(), ended);
    }
  }
  Call(ended);
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
