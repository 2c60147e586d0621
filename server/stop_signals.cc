#include "server/stop_signals.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "base/clock.h"

namespace quire::server {
namespace {

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

// SIGPIPE and SIGXFSZ come with an error of write(2), which is handled where it occurs.
constexpr int kIgnored[] = {SIGPIPE, SIGXFSZ, SIGALRM, SIGVTALRM, SIGIO,
                            SIGPWR,  SIGUSR1, SIGUSR2, SIGSTKFLT};

}  // namespace

StopSignals::StopSignals() {
  for (const int signal : kIgnored) std::signal(signal, SIG_IGN);
  const sigset_t signals = Signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { Run(); });
}

StopSignals::~StopSignals() {
  {
    base::MutexLock lock(mu_);
    ended_ = true;
  }
  thread_.join();
}

void StopSignals::StartServing() {
  base::MutexLock lock(mu_);
  serving_ = true;
}

void StopSignals::Wait() {
  base::MutexLock lock(mu_);
  while (!signalled_ && !stopped_) changed_.WaitFor(mu_, std::chrono::minutes(1));
}

void StopSignals::Stop() {
  base::MutexLock lock(mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

bool StopSignals::WaitForStop(absl::Duration timeout) {
  const absl::Time end = base::SteadyNow() + timeout;
  base::MutexLock lock(mu_);
  while (!stopped_) {
    const absl::Duration left = end - base::SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(mu_, absl::ToChronoNanoseconds(left));
  }
  return true;
}

void StopSignals::OnHangUp(std::function<void()> reload) {
  base::MutexLock lock(mu_);
  reload_ = std::move(reload);
}

void StopSignals::Run() {
  const sigset_t signals = Signals();
  // The interval at which `ended_` is checked.
  const timespec patience{.tv_sec = 0, .tv_nsec = 100'000'000};
  while (true) {
    const int signal = ::sigtimedwait(&signals, nullptr, &patience);
    base::MutexLock lock(mu_);
    if (ended_) return;
    if (signal == SIGHUP && reload_) reload_();
    if (signal != SIGTERM && signal != SIGINT && signal != SIGQUIT) continue;
    if (!serving_) std::_Exit(EXIT_SUCCESS);
    if (signalled_) std::_Exit(EXIT_FAILURE);
    signalled_ = true;
    changed_.NotifyAll();
  }
}

}  // namespace quire::server
