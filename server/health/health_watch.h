#pragma once

// Calls the server through its own listener every few seconds. When the server starts or stops
// hanging, or when its steps start or stop failing, the watch logs the change once and sets gRPC's
// health status.

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "base/mutex.h"
#include "server/health/health.h"

namespace quire::server {

class HealthWatch {
 public:
  // `call` calls the listener, and returns within seconds. `set_serving` sets the health status
  // that clients see. `on_hang`, which may be null, is called while a step hangs. All are called on
  // the watch's own thread. `health` must outlive this object.
  HealthWatch(Health& health, std::function<absl::Status()> call,
              std::function<void(bool)> set_serving, std::function<void()> on_hang = nullptr);
  ~HealthWatch() { Stop(); }
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

  // Joins the thread. Must be called before the listener is closed.
  void Stop();

 private:
  void Run();
  void Judge();
  // Waits until the next turn. Returns false when the watch stops.
  bool Wait();

  Health& health_;
  const std::function<absl::Status()> call_;
  const std::function<void(bool)> set_serving_;
  const std::function<void()> on_hang_;

  // The state that was reported last. Used by the thread only.
  bool alive_ = true;
  bool working_ = true;  // steps do not fail

  base::Mutex mu_;
  base::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // declared last, because it uses the other members
};

}  // namespace quire::server
