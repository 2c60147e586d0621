#pragma once

// Waits between two looks at a server.

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "client/interrupt.h"

namespace quire::client {

// Waits until a given time, or until Ctrl-C.
class Pause {
 public:
  explicit Pause(Interrupt& interrupt) : interrupt_(interrupt) {
    interrupt_.SetHandler([this] {
      base::MutexLock lock(mu_);
      interrupted_ = true;
      wake_.NotifyAll();
    });
  }
  ~Pause() { interrupt_.ClearHandler(); }

  // Returns false when interrupted.
  bool Until(absl::Time time) {
    base::MutexLock lock(mu_);
    while (!interrupted_ && absl::Now() < time) {
      wake_.WaitFor(mu_, absl::ToChronoNanoseconds(time - absl::Now()));
    }
    return !interrupted_;
  }

 private:
  Interrupt& interrupt_;
  base::Mutex mu_;
  base::CondVar wake_;
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace quire::client
