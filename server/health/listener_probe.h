#pragma once

// Calls our own listener over the network stack, like any client. The probe calls Check of
// grpc.health.v1, and writes the HTTP/2 frames itself. Any answer counts, even a refusal, because
// any answer shows that connections are accepted and calls are answered. The probe has no client
// certificate. Where the listener requires a certificate, the server's half of the TLS handshake
// counts as the answer.

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
  // `address` is the listener's address. `announce` gets the local port of each call before the
  // call connects, so that connection limits do not apply to it. `announce` may be empty. Returns
  // Unavailable when the host has no address.
  static absl::StatusOr<ListenerProbe> Create(const ListenAddress& address, ListenerTls tls,
                                              std::function<void(uint16_t)> announce);

  // Makes one call. Returns Unavailable, after `timeout` at the latest, when there is no answer.
  // The message names the step that the call reached.
  absl::Status Call(absl::Duration timeout) const;

 private:
  ListenerProbe() = default;

  SocketAddress address_;
  ListenerTls tls_ = ListenerTls::kNone;
  std::function<void(uint16_t)> announce_;
};

}  // namespace quire::server
