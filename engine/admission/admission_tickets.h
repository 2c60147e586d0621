#pragma once

// Places among the waiting requests.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "engine/request/tenant_limits.h"

namespace quire::engine {

class AdmissionTickets;

// A place among the waiting requests. It is taken at submission, before the frontend. It is
// released when the request starts to run, or ends without running. Move-only. An empty ticket
// holds no place.
class AdmissionTicket {
 public:
  AdmissionTicket() = default;
  AdmissionTicket(AdmissionTicket&& other) noexcept;
  AdmissionTicket& operator=(AdmissionTicket&& other) noexcept;
  ~AdmissionTicket() { Release(); }

  void Release();  // a second call does nothing
  explicit operator bool() const { return tickets_ != nullptr; }

 private:
  friend class AdmissionTickets;
  using Tenants = std::map<std::string, int64_t, std::less<>>;
  AdmissionTicket(AdmissionTickets* tickets, Tenants::iterator tenant)
      : tickets_(tickets), tenant_(tenant) {}

  AdmissionTickets* tickets_ = nullptr;  // not owned
  Tenants::iterator tenant_;             // in the map of tickets_; valid while tickets_ is not null
};

// Gives out tickets. max_queue bounds the number of requests that wait for their first step, in the
// frontend, in the StepChannel and in the scheduler. So a full server refuses requests at
// submission. A request that has a ticket is never refused for lack of a place. A tenant's limits
// bound the number of that tenant's waiting requests. Must outlive the tickets. Thread-safe.
class AdmissionTickets {
 public:
  // At least 1. `name` is that of the limit, for errors.
  explicit AdmissionTickets(int32_t max_queue, std::string_view name = "max_queue");

  // Returns a ticket for one request. Returns ResourceExhausted if max_queue requests wait, or if
  // as many requests of `tenant` wait as `limits` allow. Returns Unavailable while draining.
  absl::StatusOr<AdmissionTicket> Reserve(std::string_view tenant = "",
                                          const TenantLimits& limits = {});

  // Refuses new tickets from now on; requests with a ticket are still served.
  void StartDrain();
  bool draining() const;

  int64_t num_waiting() const { return num_waiting_.load(std::memory_order_relaxed); }

 private:
  friend class AdmissionTicket;

  absl::Status CheckRoom(int64_t waiting_of_tenant, const TenantLimits& limits) const;
  void Release(AdmissionTicket::Tenants::iterator tenant);

  const int32_t max_queue_;
  const std::string name_;
  // The number of tickets held; never above max_queue_. Written under mu_.
  std::atomic<int64_t> num_waiting_ = 0;

  mutable base::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  AdmissionTicket::Tenants waiting_by_tenant_ ABSL_GUARDED_BY(mu_);  // tenants with tickets
};

}  // namespace quire::engine
