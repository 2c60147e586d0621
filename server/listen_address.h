#pragma once

// "127.0.0.1:8100": where a server listens, and who can reach it there.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire::server {

struct ListenAddress {
  std::string host;   // a name or an address, IPv6 without brackets
  uint16_t port = 0;  // 0: any free one

  std::string ToString() const;  // "[::1]:8100"
};

// InvalidArgument unless `text` is HOST:PORT, with an IPv6 address in brackets.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text);

// Whether only this machine can reach it: 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const ListenAddress& address);

// Unavailable, naming the cause, when nothing can listen there now. A server that takes minutes to
// load finds out before it does.
absl::Status CheckCanListen(const ListenAddress& address);

}  // namespace quire::server
