#include "engine/admission/admission_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace quire::engine {

AdmissionTicket::AdmissionTicket(AdmissionTicket&& other) noexcept
    : queue_(std::exchange(other.queue_, nullptr)), tenant_(other.tenant_) {}

AdmissionTicket& AdmissionTicket::operator=(AdmissionTicket&& other) noexcept {
  if (this != &other) {
    Release();
    queue_ = std::exchange(other.queue_, nullptr);
    tenant_ = other.tenant_;
  }
  return *this;
}

void AdmissionTicket::Release() {
  if (AdmissionQueue* queue = std::exchange(queue_, nullptr)) {
    queue->Release(tenant_);
  }
}

AdmissionQueue::AdmissionQueue(int32_t max_queue) : max_queue_(max_queue) {
  QUIRE_CHECK(max_queue >= 1) << "max_queue: got " << max_queue;
}

void AdmissionQueue::Release(AdmissionTicket::Tenants::iterator tenant) {
  base::MutexLock lock(mu_);
  num_waiting_.fetch_sub(1, std::memory_order_relaxed);
  if (--tenant->second == 0) waiting_by_tenant_.erase(tenant);
}

absl::Status AdmissionQueue::CheckRoom(int64_t waiting_of_tenant,
                                       const TenantLimits& limits) const {
  const int64_t free = max_queue_ - num_waiting_.load(std::memory_order_relaxed);
  if (free <= 0) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("max_queue: %d requests wait already: try later", max_queue_));
  }
  // Choudhury and Hahne's dynamic thresholds share the buffer of a switch by the same rule
  // (IEEE/ACM ToN 6(2), 1998).
  const bool leaves_room = !limits.leaves_room || waiting_of_tenant < limits.share * free;
  if (!leaves_room || (limits.max_waiting > 0 && waiting_of_tenant >= limits.max_waiting)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "max_waiting: %d requests of this tenant wait already: try later", waiting_of_tenant));
  }
  return absl::OkStatus();
}

absl::StatusOr<AdmissionTicket> AdmissionQueue::Reserve(std::string_view tenant,
                                                        const TenantLimits& limits) {
  // The lock is held throughout, so that no ticket is given out after StartDrain() has returned.
  base::MutexLock lock(mu_);
  if (draining_) return absl::UnavailableError("the server is draining: try another one");
  auto it = waiting_by_tenant_.find(tenant);
  RETURN_IF_ERROR(CheckRoom(it == waiting_by_tenant_.end() ? 0 : it->second, limits));
  if (it == waiting_by_tenant_.end()) it = waiting_by_tenant_.emplace(tenant, 0).first;
  ++it->second;
  num_waiting_.fetch_add(1, std::memory_order_relaxed);
  return AdmissionTicket(this, it);
}

void AdmissionQueue::Push(std::shared_ptr<Request> request, AdmissionTicket ticket) {
  base::MutexLock lock(mu_);
  queue_.push_back({.request = std::move(request), .ticket = std::move(ticket)});
  work_.NotifyOne();
}

void AdmissionQueue::StartDrain() {
  base::MutexLock lock(mu_);
  draining_ = true;
}

bool AdmissionQueue::draining() const {
  base::MutexLock lock(mu_);
  return draining_;
}

void AdmissionQueue::Notice(std::weak_ptr<const Request> request) {
  base::MutexLock lock(mu_);
  noticed_.push_back(std::move(request));
  work_.NotifyOne();
}

void AdmissionQueue::Wake() {
  base::MutexLock lock(mu_);
  woken_ = true;
  work_.NotifyOne();
}

bool AdmissionQueue::WaitForWork(absl::Duration timeout) {
  // 24 hours are long enough to count as forever and short enough not to overflow a clock.
  const absl::Duration at_most = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24));
  const absl::Time deadline = base::SteadyNow() + at_most;
  base::MutexLock lock(mu_);
  while (!woken_ && queue_.empty() && noticed_.empty()) {
    const absl::Duration left = deadline - base::SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    work_.WaitFor(mu_, absl::ToChronoNanoseconds(left));
  }
  woken_ = false;
  return true;
}

void AdmissionQueue::Drain(std::vector<AdmittedRequest>& out,
                           std::vector<std::shared_ptr<const Request>>& noticed) {
  base::MutexLock lock(mu_);
  for (const std::weak_ptr<const Request>& request : noticed_) {
    if (auto alive = request.lock()) noticed.push_back(std::move(alive));
  }
  noticed_.clear();
  std::move(queue_.begin(), queue_.end(), std::back_inserter(out));
  queue_.clear();
}

}  // namespace quire::engine
