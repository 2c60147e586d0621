#pragma once

// The epoll set of one thread, which other threads can wake.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include <sys/epoll.h>

#include "base/unique_fd.h"

namespace quire::server::door {

// Wake is thread-safe; the other methods are for one thread.
class Epoll {
 public:
  Epoll();

  // Sets the events that Wait waits for on `fd`; 0 means none. `armed` holds the events that are
  // set for `fd`: it begins at 0, and Arm updates it.
  void Arm(int fd, uint32_t events, uint32_t& armed, void* data);

  // Waits for events and returns them. The result is empty when only a Wake or the timeout ended
  // the wait. A `timeout` of nullopt waits for ever.
  std::span<const epoll_event> Wait(std::optional<std::chrono::milliseconds> timeout);

  void Wake();

 private:
  base::UniqueFd epoll_;
  base::UniqueFd wake_;
  std::array<epoll_event, 128> events_{};
};

// Sets the name of the calling thread, and blocks SIGPIPE in it. OpenSSL writes without
// MSG_NOSIGNAL, so without the block a client that disconnects during a write would end the
// process.
void StartDoorThread(const char* name);

}  // namespace quire::server::door
