#pragma once

// The door in front of gRPC. It owns the listening sockets, terminates TLS, and limits everything
// that a hostile client could send in excess. For each client that it lets in, it gives gRPC one
// end of a local connection. gRPC 1.51 has none of these limits. It never accepts again once
// descriptors have run out, takes headers of any length, and reads a whole request before our code
// can refuse it.
//
//   client --TCP, TLS--> Greeter --> Relay (Http2Watch) --local socket--> gRPC
//
// A call's ServerContext::peer() is a key of the PeerDirectory, which knows the client's true
// address and the name in its certificate.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/config/listen_address.h"
#include "server/config/tls_files.h"
#include "server/door/door_counters.h"
#include "server/door/greeter.h"
#include "server/door/http2_watch.h"
#include "server/door/peer_directory.h"
#include "server/door/places.h"
#include "server/door/relay.h"

namespace quire::server::door {

struct DoorOptions {
  size_t max_connections = 0;  // 0: as many as file descriptors allow, at most 4096
  size_t max_per_address = 0;  // from one IPv4 address or IPv6 /64; 0: see Places
  std::chrono::milliseconds handshake_time{5000};  // from accept to HTTP/2's first frame
  Http2Limits http2;
};

class Door {
 public:
  // Opens a door, which accepts clients from now on. Borrows `peers` and `counters`, which several
  // doors may share. Doors that share `counters` also share the limits Http2Limits::total_bytes and
  // total_streams. Returns Unavailable when the door cannot listen, and InvalidArgument when
  // OpenSSL does not accept the TLS files.
  static absl::StatusOr<std::unique_ptr<Door>> Open(ListenAddress address, const TlsFiles& tls,
                                                    const DoorOptions& options, PeerGate gate,
                                                    HandOver hand_over, PeerDirectory& peers,
                                                    DoorCounters& counters);
  ~Door();  // StopAccepting(), Close()
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  const ListenAddress& address() const { return address_; }  // with the port that was chosen

  // Sets the certificates of new connections, and ends those whose client shows a certificate that
  // the client CA of `tls` has not signed. On an error all stays as it is. Thread-safe.
  absl::Status SetTls(const TlsFiles& tls);

  // Announces that the server will connect to itself from local port `port`. That connection does
  // not count against the limits. Thread-safe.
  void ExpectSelfCall(uint16_t port);

  // Stops listening. When this returns, the door hands no more connections to gRPC. Must be called
  // before the gRPC server is shut down, since gRPC would never serve or close a later connection.
  void StopAccepting();
  // Sends the last bytes that gRPC has written, and closes everything. Must be called after the
  // gRPC server has ended.
  void Close();

 private:
  Door(ListenAddress address, const DoorOptions& options);

  const ListenAddress address_;
  const Http2Limits http2_;
  Places places_;
  std::unique_ptr<Relay> relay_;
  std::unique_ptr<Greeter> greeter_;  // also holds the gate that the relay's connections call
};

// Raises the process's soft limit of file descriptors to the hard limit. Must be called before a
// door is opened, because the soft limit sets the door's default for max_connections.
void RaiseDescriptorLimit();

}  // namespace quire::server::door
