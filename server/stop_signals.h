#pragma once

// Handles signals. The first SIGTERM, SIGINT or SIGQUIT asks the server to drain, and the second
// asks it to exit immediately. The server can ask itself to drain, which is no signal. SIGHUP asks
// the server to read files again. Signals that mean nothing to a server, and would kill the process
// by default, are ignored: of timers, of a reader that is gone, of a file at the limit of its size.

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "base/mutex.h"

namespace quire::server {

// A process has one StopSignals, made before any other thread starts. All threads then block the
// signals, and a separate thread takes them.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on the first stop signal ends Wait. Before this call, a stop signal ends the process
  // with status 0, because no request runs yet.
  void StartServing();
  // Returns after the first signal to stop, or after Stop.
  void Wait();
  // Ends Wait and WaitForStop. A signal that comes afterwards still counts as the first.
  // Thread-safe.
  void Stop();
  // Returns after Stop, or after `timeout`. Returns true after Stop.
  bool WaitForStop(absl::Duration timeout);

  // Makes SIGHUP call `reload` on the signals' thread. If `reload` is null, SIGHUP does nothing.
  // When OnHangUp returns, the previous `reload` is no longer running.
  void OnHangUp(std::function<void()> reload);

 private:
  void Run();

  base::Mutex mu_;
  base::CondVar changed_;
  std::function<void()> reload_ ABSL_GUARDED_BY(mu_);
  bool serving_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;    // by Stop
  bool signalled_ ABSL_GUARDED_BY(mu_) = false;  // the first signal came
  bool ended_ ABSL_GUARDED_BY(mu_) = false;      // the destructor runs
  std::thread thread_;                           // declared last, because it uses the other members
};

}  // namespace quire::server
