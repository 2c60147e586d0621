#pragma once

// Takes connections from listening sockets, also when the process has no descriptor left: gRPC 1.51
// never accepts again after EMFILE (CVE-2023-4785).

#include <string>

#include <netinet/in.h>

#include "base/unique_fd.h"
#include "server/door/door_counters.h"

namespace quire::server::door {

struct AcceptedClient {
  base::UniqueFd fd;
  std::string address;      // "203.0.113.7:51234"
  std::string address_key;  // what counts as one address
};

// One thread.
class Acceptor {
 public:
  explicit Acceptor(DoorCounters& counters);  // borrowed

  enum class Outcome {
    kAccepted,
    kNobody,
    kNoDescriptors,  // one was turned away all the same; rest a while
  };
  // The next one that waits at `listener`.
  Outcome Accept(int listener, AcceptedClient& client);

 private:
  DoorCounters& counters_;
  base::UniqueFd spare_;  // given up to turn somebody away when there is no other
};

// What counts as one address: an IPv4 address, or the first 64 bits of an IPv6 one.
std::string AddressKey(const sockaddr_storage& address);
std::string AddressText(const sockaddr_storage& address);
std::string IpText(const sockaddr_storage& address);

}  // namespace quire::server::door
