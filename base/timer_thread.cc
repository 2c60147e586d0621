#include "base/timer_thread.h"

#include <algorithm>
#include <utility>

namespace quire::base {
namespace {

constexpr absl::Duration kLongestWait = absl::Hours(1);

}  // namespace

void TimerThread::Start(std::function<absl::Time()> run) {
  run_ = std::move(run);
  thread_ = std::thread([this] { Loop(); });
}

void TimerThread::Wake() {
  MutexLock lock(mu_);
  is_woken_ = true;
  changed_.NotifyAll();
}

void TimerThread::Stop() {
  {
    MutexLock lock(mu_);
    is_stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void TimerThread::Loop() {
  while (true) {
    const absl::Time next = run_();
    MutexLock lock(mu_);
    const absl::Duration wait = std::min(next - clock_.Now(), kLongestWait);
    if (!is_stopping_ && !is_woken_ && wait > absl::ZeroDuration()) {
      changed_.WaitFor(mu_, absl::ToChronoNanoseconds(wait));
    }
    if (is_stopping_) return;
    is_woken_ = false;
  }
}

}  // namespace quire::base
