#pragma once

// An address that a server listens at, such as "127.0.0.1:8100", and functions that listen there.

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
  uint16_t port = 0;  // 0: any free port

  std::string ToString() const;  // "[::1]:8100"
};

// Returns InvalidArgument unless `text` is HOST:PORT, with an IPv6 address in brackets.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text);

// Returns true when only this machine can reach `address`: 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const ListenAddress& address);

// An address for connect(2).
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

// Returns the address by which this machine can connect to a listener at `address`: loopback for
// 0.0.0.0 and [::]. Returns Unavailable when the host has no address.
absl::StatusOr<SocketAddress> ResolveLocal(const ListenAddress& address);

// Returns the local port of a socket.
uint16_t PortOf(int fd);

// Returns non-blocking sockets that listen at `address`, one for each address of a host name that
// this machine has. The socket of [::] takes IPv4 too. Replaces a port of 0 by the port that was
// chosen. Returns Unavailable, with the cause, when the server cannot listen there now.
absl::StatusOr<std::vector<base::UniqueFd>> Listen(ListenAddress& address);

// Listens at `address` for a moment. Returns an error if the server cannot listen there. A server
// that takes minutes to load its model calls this before it loads.
absl::Status CheckCanListen(const ListenAddress& address);

}  // namespace quire::server
