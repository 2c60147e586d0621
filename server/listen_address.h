#pragma once

// "127.0.0.1:8100": where a server listens, and who can reach it there.

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

// Whether only this machine can reach it: 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const ListenAddress& address);

// For connect(2).
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

// Where a listener at `address` is reached on this machine: loopback for 0.0.0.0 and [::].
// Unavailable when the host has no address.
absl::StatusOr<SocketAddress> ResolveLocal(const ListenAddress& address);

// The local port of a socket.
uint16_t PortOf(int fd);

// Sockets that listen there and never block, one for each address of a name; [::] takes IPv4 too. A
// port of 0 becomes the one that was found. Unavailable, naming the cause, when nothing can listen
// there now.
absl::StatusOr<std::vector<base::UniqueFd>> Listen(ListenAddress& address);

// Listen, and leave it at that: a server that takes minutes to load finds out before it does.
absl::Status CheckCanListen(const ListenAddress& address);

}  // namespace quire::server
