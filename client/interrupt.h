#pragma once

// Turns Ctrl-C and SIGTERM into an ordinary function call on a separate thread.

#include <functional>
#include <thread>

#include "base/mutex.h"

namespace quire::client {

// Make one Interrupt at the start of main, before any other thread. Its constructor blocks SIGINT
// and SIGTERM for the calling thread and the threads that it starts later. At a signal without a
// handler, or at the second signal, the process ends with exit status 130.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Makes the next signal call `handler`, once. When SetHandler returns, the previous handler is
  // not running and will not run.
  void SetHandler(std::function<void()> handler);
  // Removes the handler. From now on a signal ends the process.
  void ClearHandler();
  // Returns true when the handler that was set last has run.
  bool interrupted() const;

 private:
  void Watch();

  int signal_fd_ = -1;  // constant after construction
  int stop_fd_ = -1;
  mutable base::Mutex mu_;
  std::function<void()> handler_ ABSL_GUARDED_BY(mu_);
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace quire::client
