#include "server/call/rpc_counters.h"

#include "base/clock.h"

namespace quire::server {

void OpenCalls::Begin() {
  base::MutexLock lock(mu_);
  ++num_open_;
}

void OpenCalls::End() {
  base::MutexLock lock(mu_);
  // Notifies while the lock is held, because the waiting thread may destroy this object as soon as
  // the lock is released.
  if (--num_open_ == 0) none_.NotifyAll();
}

int64_t OpenCalls::Get() const {
  base::MutexLock lock(mu_);
  return num_open_;
}

bool OpenCalls::WaitUntilNone(absl::Time deadline) const {
  base::MutexLock lock(mu_);
  while (num_open_ > 0) {
    const absl::Duration left = deadline - base::SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    none_.WaitFor(mu_, absl::ToChronoNanoseconds(left));
  }
  return true;
}

}  // namespace quire::server
