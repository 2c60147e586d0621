#include "server/door/epoll.h"

#include <algorithm>
#include <csignal>
#include <pthread.h>

#include <sys/eventfd.h>

#include "base/check.h"

namespace quire::server::door {

Epoll::Epoll()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  QUIRE_CHECK(epoll_ && wake_) << "no file descriptor for the door";
  uint32_t armed = 0;
  Arm(wake_.get(), EPOLLIN, armed, this);
}

void Epoll::Arm(int fd, uint32_t events, uint32_t& armed, void* data) {
  if (events == armed) return;
  const int operation = armed == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  epoll_event event{.events = events, .data = {.ptr = data}};
  ::epoll_ctl(epoll_.get(), operation, fd, &event);
  armed = events;
}

std::span<const epoll_event> Epoll::Wait(std::optional<std::chrono::milliseconds> timeout) {
  const int milliseconds = timeout ? static_cast<int>(std::max<int64_t>(0, timeout->count())) : -1;
  const int count =
      ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), milliseconds);
  const auto end = std::remove_if(events_.begin(), events_.begin() + std::max(count, 0),
                                  [this](const epoll_event& event) {
                                    if (event.data.ptr != this) return false;
                                    eventfd_t value;
                                    ::eventfd_read(wake_.get(), &value);
                                    return true;
                                  });
  return {events_.begin(), end};
}

void Epoll::Wake() { ::eventfd_write(wake_.get(), 1); }

void StartDoorThread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
}

}  // namespace quire::server::door
