#pragma once

// Calls the server through its own listener every few seconds. When something hangs or fails, it
// logs that once and sets gRPC's health.

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "base/mutex.h"
#include "server/health/health.h"

namespace quire::server {

class HealthWatch {
 public:
  // `call` asks the listener for an answer, within seconds; `set_serving` announces whether the
  // server wants requests. Both are called on the watch's own thread. `health` must outlive this.
  HealthWatch(Health& health, std::function<absl::Status()> call,
              std::function<void(bool)> set_serving);
  ~HealthWatch() { Stop(); }
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

  // Joins the thread. Must be called before the listener is closed.
  void Stop();

 private:
  void Run();
  void Judge();
  // Waits until the next turn; false: stopping.
  bool Wait();

  Health& health_;
  const std::function<absl::Status()> call_;
  const std::function<void(bool)> set_serving_;

  // Only the thread's: the state that was reported last.
  bool alive_ = true;
  bool working_ = true;  // no step fails

  base::Mutex mu_;
  base::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace quire::server
