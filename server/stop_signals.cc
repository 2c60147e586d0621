#include "server/stop_signals.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <utility>

namespace quire::server {
namespace {

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2}) {
    sigaddset(&signals, signal);
  }
  return signals;
}

}  // namespace

StopSignals::StopSignals() {
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
  while (!stop_) stopped_.WaitFor(mu_, std::chrono::minutes(1));
}

void StopSignals::Stop() {
  base::MutexLock lock(mu_);
  stop_ = true;
  stopped_.NotifyAll();
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
    signalled_ = stop_ = true;
    stopped_.NotifyAll();
  }
}

}  // namespace quire::server
