#pragma once

// An address that a server listens at, such as "127.0.0.1:8100", and who can reach it there.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/unique_fd.h"

namespace quire::server {

struct ListenAddress {
  std::string host;   // a name or an address, IPv6 without brackets
  uint16_t port = 0;  // 0: any free one

  std::string ToString() const;  // "[::1]:8100"
};

// InvalidArgument unless `text` is HOST:PORT, with an IPv6 address in brackets.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text);

// True when only this machine can reach it: 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const ListenAddress& address);

// An address for connect(2).
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

// Returns the address at which this machine itself reaches a listener at `address`: loopback for
// 0.0.0.0 and [::]. Unavailable when the host has no address.
absl::StatusOr<SocketAddress> ResolveLocal(const ListenAddress& address);

// Returns the local port of a socket.
uint16_t PortOf(int fd);

// Returns non-blocking sockets that listen there, one for each address of a name; [::] takes IPv4
// too. A port of 0 is replaced by the one that was found. Unavailable, with the cause, when nothing
// can listen there now.
absl::StatusOr<std::vector<base::UniqueFd>> Listen(ListenAddress& address);

// Listens for a moment and stops. A server that takes minutes to load its model finds out before
// that whether it can listen.
absl::Status CheckCanListen(const ListenAddress& address);

}  // namespace quire::server
