#pragma once

// A call to our own listener, over the network stack like anybody's: grpc.health.v1 Check, spoken
// by hand. Any answer to it will do, a refusal too: it shows that connections are accepted and
// calls are answered. A client certificate is not at hand, so where one is wanted the server's half
// of the TLS handshake has to be enough.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/listen_address.h"

namespace quire::server {

enum class ListenerTls { kNone, kServer, kMutual };

class ListenerProbe {
 public:
  // `address` of the listener. `announce` is told the local port of each call before it connects,
  // so that the call is held to no limit; may be empty. Unavailable when the host has no address.
  static absl::StatusOr<ListenerProbe> Create(const ListenAddress& address, ListenerTls tls,
                                              std::function<void(uint16_t)> announce);

  // Unavailable, after `timeout` at the latest, says how far it came.
  absl::Status Call(absl::Duration timeout) const;

 private:
  ListenerProbe() = default;

  SocketAddress address_;
  ListenerTls tls_ = ListenerTls::kNone;
  std::function<void(uint16_t)> announce_;
};

}  // namespace quire::server
