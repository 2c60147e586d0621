#pragma once

// SIGTERM, SIGINT and SIGQUIT: the first asks to drain, the second to exit at once. SIGHUP asks to
// read files again. SIGUSR1 and SIGUSR2, which would kill, mean nothing.

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"

namespace quire::server {

// One a process, made before any other thread: the signals are blocked in all of them, and taken by
// a thread of its own.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on the first signal is waited for; before, it exits with status 0: nothing runs yet.
  void StartServing();
  // Until the first signal to stop.
  void Wait();

  // Called on the signals' thread at SIGHUP; without one it means nothing. Null takes it back: the
  // one before is not running any more.
  void OnHangUp(std::function<void()> reload);

 private:
  void Run();

  base::Mutex mu_;
  base::CondVar stopped_;
  std::function<void()> reload_ ABSL_GUARDED_BY(mu_);
  bool serving_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;   // the first signal came
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // the destructor runs
  std::thread thread_;                       // last: it uses the others
};

}  // namespace quire::server
