#pragma once

// A thread that runs timers.

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/mutex.h"

namespace quire::base {

// Runs a function that does what is due, whenever something is. Thread-safe, but for Start and
// Stop.
class TimerThread {
 public:
  // `clock` must outlive this.
  explicit TimerThread(const Clock& clock) : clock_(clock) {}
  ~TimerThread() { Stop(); }

  // `run` returns when it must be called again.
  void Start(std::function<absl::Time()> run);
  // `run` has something to do earlier than it said. It may call this.
  void Wake();
  // Waits for the end of `run`, which is not called again.
  void Stop();

 private:
  void Loop();

  const Clock& clock_;
  std::function<absl::Time()> run_;
  std::thread thread_;
  Mutex mu_;
  CondVar changed_;
  bool is_woken_ ABSL_GUARDED_BY(mu_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace quire::base
