#include "engine/admission/admission_tickets.h"

#include <utility>

#include "absl/strings/str_format.h"

#include "base/check.h"
#include "base/status_macros.h"

namespace quire::engine {

AdmissionTicket::AdmissionTicket(AdmissionTicket&& other) noexcept
    : tickets_(std::exchange(other.tickets_, nullptr)), tenant_(other.tenant_) {}

AdmissionTicket& AdmissionTicket::operator=(AdmissionTicket&& other) noexcept {
  if (this != &other) {
    Release();
    tickets_ = std::exchange(other.tickets_, nullptr);
    tenant_ = other.tenant_;
  }
  return *this;
}

void AdmissionTicket::Release() {
  if (AdmissionTickets* tickets = std::exchange(tickets_, nullptr)) {
    tickets->Release(tenant_);
  }
}

AdmissionTickets::AdmissionTickets(int32_t max_queue, std::string_view name)
    : max_queue_(max_queue), name_(name) {
  QUIRE_CHECK(max_queue >= 1) << name_ << ": got " << max_queue;
}

void AdmissionTickets::Release(AdmissionTicket::Tenants::iterator tenant) {
  base::MutexLock lock(mu_);
  num_waiting_.fetch_sub(1, std::memory_order_relaxed);
  if (--tenant->second == 0) waiting_by_tenant_.erase(tenant);
}

absl::Status AdmissionTickets::CheckRoom(int64_t waiting_of_tenant,
                                         const TenantLimits& limits) const {
  const int64_t free = max_queue_ - num_waiting_.load(std::memory_order_relaxed);
  if (free <= 0) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: %d requests wait already: try later", name_, max_queue_));
  }
  const bool leaves_room =
      !limits.leaves_room || MostMore(waiting_of_tenant, free, limits.share) > 0;
  if (!leaves_room || (limits.max_waiting > 0 && waiting_of_tenant >= limits.max_waiting)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "max_waiting: %d requests of this tenant wait already: try later", waiting_of_tenant));
  }
  return absl::OkStatus();
}

absl::StatusOr<AdmissionTicket> AdmissionTickets::Reserve(std::string_view tenant,
                                                          const TenantLimits& limits) {
  // One lock covers the check of draining_ and the reservation. So no ticket is given out after
  // StartDrain() has returned.
  base::MutexLock lock(mu_);
  if (draining_) return absl::UnavailableError("the server is draining: try another one");
  auto it = waiting_by_tenant_.find(tenant);
  RETURN_IF_ERROR(CheckRoom(it == waiting_by_tenant_.end() ? 0 : it->second, limits));
  if (it == waiting_by_tenant_.end()) it = waiting_by_tenant_.emplace(tenant, 0).first;
  ++it->second;
  num_waiting_.fetch_add(1, std::memory_order_relaxed);
  return AdmissionTicket(this, it);
}

void AdmissionTickets::StartDrain() {
  base::MutexLock lock(mu_);
  draining_ = true;
}

bool AdmissionTickets::draining() const {
  base::MutexLock lock(mu_);
  return draining_;
}

}  // namespace quire::engine
