#pragma once

// One thread's epoll set, and a way for others to wake it.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include <sys/epoll.h>

#include "base/unique_fd.h"

namespace quire::server::door {

// Wake is thread-safe; the rest is for one thread.
class Epoll {
 public:
  Epoll();

  // What `fd` waits for is `events` from now on; `armed` remembers it between calls, 0: nothing.
  void Arm(int fd, uint32_t events, uint32_t& armed, void* data);

  // What has happened, a Wake left out; empty at a Wake or after `timeout`; nullopt waits for ever.
  std::span<const epoll_event> Wait(std::optional<std::chrono::milliseconds> timeout);

  void Wake();

 private:
  base::UniqueFd epoll_;
  base::UniqueFd wake_;
  std::array<epoll_event, 128> events_{};
};

// For a thread of the door: its name, and that a client which goes in the middle of a write, which
// OpenSSL does without MSG_NOSIGNAL, ends no process.
void StartDoorThread(const char* name);

}  // namespace quire::server::door
