#pragma once

// Calls our own listener over the network stack, like any client: grpc.health.v1 Check, with its
// HTTP/2 frames made here. Any answer counts, even a refusal: it shows that connections are
// accepted and calls are answered. The probe has no client certificate. Where the listener requires
// one, the server's half of the TLS handshake counts as the answer.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/config/listen_address.h"

namespace quire::server {

enum class ListenerTls { kNone, kServer, kMutual };

class ListenerProbe {
 public:
  // `address` is that of the listener. `announce` gets the local port of each call before it
  // connects, so that no limit of connections applies to the call; it may be empty. Unavailable
  // when the host has no address.
  static absl::StatusOr<ListenerProbe> Create(const ListenAddress& address, ListenerTls tls,
                                              std::function<void(uint16_t)> announce);

  // Unavailable, after `timeout` at the latest, names the step that the call reached.
  absl::Status Call(absl::Duration timeout) const;

 private:
  ListenerProbe() = default;

  SocketAddress address_;
  ListenerTls tls_ = ListenerTls::kNone;
  std::function<void(uint16_t)> announce_;
};

}  // namespace quire::server
