#include "client/interrupt.h"

#include <cstdint>
#include <cstdlib>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <sys/eventfd.h>
#include <sys/signalfd.h>

#include "base/check.h"
#include "client/command.h"

namespace quire::client {

Interrupt::Interrupt() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  QUIRE_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  QUIRE_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
  thread_ = std::thread([this] { Watch(); });
}

Interrupt::~Interrupt() {
  const uint64_t one = 1;
  QUIRE_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
}

void Interrupt::SetHandler(std::function<void()> handler) {
  base::MutexLock lock(mu_);
  handler_ = std::move(handler);
  interrupted_ = false;
}

void Interrupt::ClearHandler() {
  base::MutexLock lock(mu_);
  handler_ = nullptr;
}

bool Interrupt::interrupted() const {
  base::MutexLock lock(mu_);
  return interrupted_;
}

void Interrupt::Watch() {
  while (true) {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    // The lock is held while the handler runs. So SetHandler and ClearHandler wait for the handler,
    // and their callers may then destroy the objects that it refers to.
    base::MutexLock lock(mu_);
    if (handler_ == nullptr || interrupted_) std::_Exit(kExitInterrupted);
    interrupted_ = true;
    handler_();
  }
}

}  // namespace quire::client
