#pragma once

// Accepts connections from listening sockets, even after the process has run out of file
// descriptors. gRPC 1.51 itself never accepts again after EMFILE (CVE-2023-4785).

#include <string>

#include <netinet/in.h>

#include "base/unique_fd.h"
#include "server/door/door_counters.h"

namespace quire::server::door {

struct AcceptedClient {
  base::UniqueFd fd;
  std::string address;      // "203.0.113.7:51234"
  std::string address_key;  // from AddressKey; connections with the same key are counted together
};

// Not thread-safe.
class Acceptor {
 public:
  explicit Acceptor(DoorCounters& counters);  // borrowed

  enum class Outcome {
    kAccepted,
    kNobody,
    kNoDescriptors,  // a client was turned away; the caller should wait before the next try
  };
  // Accepts the next connection that waits at `listener`.
  Outcome Accept(int listener, AcceptedClient& client);

 private:
  DoorCounters& counters_;
  base::UniqueFd spare_;  // closed to turn a client away when no other descriptor is free
};

// Returns the key by which connections are counted: an IPv4 address, or the first 64 bits of an
// IPv6 address.
std::string AddressKey(const sockaddr_storage& address);
std::string AddressText(const sockaddr_storage& address);
std::string IpText(const sockaddr_storage& address);

}  // namespace quire::server::door
