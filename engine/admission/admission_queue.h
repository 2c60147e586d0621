#pragma once

// The bounded queue into the step thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "engine/request/request.h"

namespace quire::engine {

class AdmissionQueue;

// A place among the waiting requests. It is taken at submission, before the frontend. It is
// released when the request first runs or ends, whichever comes first. Move-only. An empty ticket
// holds no place.
class AdmissionTicket {
 public:
  AdmissionTicket() = default;
  AdmissionTicket(AdmissionTicket&& other) noexcept;
  AdmissionTicket& operator=(AdmissionTicket&& other) noexcept;
  ~AdmissionTicket() { Release(); }

  void Release();  // a second call does nothing
  explicit operator bool() const { return queue_ != nullptr; }

 private:
  friend class AdmissionQueue;
  using Tenants = std::map<std::string, int64_t, std::less<>>;
  AdmissionTicket(AdmissionQueue* queue, Tenants::iterator tenant)
      : queue_(queue), tenant_(tenant) {}

  AdmissionQueue* queue_ = nullptr;  // not owned
  Tenants::iterator tenant_;         // in the queue's map; valid while queue_ is not null
};

struct AdmittedRequest {
  std::shared_ptr<Request> request;
  AdmissionTicket ticket;
};

// Any thread pushes requests; the step thread drains them. max_queue bounds the number of requests
// that wait for their first step, in the frontend, here and in the scheduler. So a full queue is
// known at submission, and the queue never refuses a request that has a ticket. A tenant's limits
// bound the number of that tenant's waiting requests. The queue must outlive its tickets.
// Thread-safe.
class AdmissionQueue {
 public:
  explicit AdmissionQueue(int32_t max_queue);  // at least 1

  // Returns a ticket for one request. Returns ResourceExhausted if max_queue requests wait, or if
  // as many requests of `tenant` wait as `limits` allow. Returns Unavailable while draining.
  absl::StatusOr<AdmissionTicket> Reserve(std::string_view tenant = "",
                                          const TenantLimits& limits = {});

  // Hands a request over and wakes the step thread; never refuses.
  void Push(std::shared_ptr<Request> request, AdmissionTicket ticket);

  // Refuses new tickets from now on; requests with a ticket are still served.
  void StartDrain();
  bool draining() const;

  // Asks the step thread to reconsider this request, because the request was cancelled or its sink
  // has room.
  void Notice(std::weak_ptr<const Request> request);
  // Makes WaitForWork return, because the engine stops. A Wake without a waiter is kept for the
  // next wait; several Wakes count as one.
  void Wake();

  // For the step thread. Waits for a request, a notice or a Wake, for at most `timeout`. Returns
  // false on time-out.
  bool WaitForWork(absl::Duration timeout);
  // For the step thread. Moves the queued requests to the end of `out`, in order. Appends to
  // `noticed` the requests that were given to Notice and still exist.
  void Drain(std::vector<AdmittedRequest>& out,
             std::vector<std::shared_ptr<const Request>>& noticed);

  int64_t num_waiting() const { return num_waiting_.load(std::memory_order_relaxed); }

 private:
  friend class AdmissionTicket;

  absl::Status CheckRoom(int64_t waiting_of_tenant, const TenantLimits& limits) const;
  void Release(AdmissionTicket::Tenants::iterator tenant);

  const int32_t max_queue_;
  // The number of tickets given out; never above max_queue_. Written under mu_.
  std::atomic<int64_t> num_waiting_ = 0;

  mutable base::Mutex mu_;
  base::CondVar work_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  AdmissionTicket::Tenants waiting_by_tenant_ ABSL_GUARDED_BY(mu_);  // tenants with tickets
  std::vector<AdmittedRequest> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<const Request>> noticed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::engine
