#pragma once

// The door in front of gRPC: it owns the listening sockets, ends TLS, counts what a hostile client
// would send too much of, and gives gRPC one end of a local connection for each client that gets
// through. gRPC 1.51 bounds none of it: it never accepts again once descriptors have run out, takes
// headers without end, and reads a request whole before any code of ours may refuse it.
//
//   client --TCP, TLS--> Greeter --> Relay (Http2Watch) --local socket--> gRPC
//
// A call's ServerContext::peer() is a key of the PeerDirectory, which knows the client's true
// address and the name in its certificate.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/door/door_counters.h"
#include "server/door/greeter.h"
#include "server/door/http2_watch.h"
#include "server/door/peer_directory.h"
#include "server/door/places.h"
#include "server/door/relay.h"
#include "server/listen_address.h"
#include "server/tls_files.h"

namespace quire::server::door {

struct DoorOptions {
  size_t max_connections = 0;  // 0: as many as there are file descriptors for, at most 4096
  size_t max_per_address = 0;  // of one IPv4 address or IPv6 /64; 0: half of max_connections
  std::chrono::milliseconds handshake_time{5000};  // from accept to HTTP/2's first frame
  Http2Limits http2;
};

class Door {
 public:
  // Listens and serves at once. Borrows `peers` and `counters`, which several doors may share; the
  // counters' unfinished bytes are what the limit for all connections is about. Unavailable when it
  // cannot listen, InvalidArgument when OpenSSL takes no such files.
  static absl::StatusOr<std::unique_ptr<Door>> Open(ListenAddress address, const TlsFiles& tls,
                                                    const DoorOptions& options, PeerGate gate,
                                                    HandOver hand_over, PeerDirectory& peers,
                                                    DoorCounters& counters);
  ~Door();  // StopAccepting(), Close()
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  const ListenAddress& address() const { return address_; }  // with the port that was found

  // For the connections that come from now on; on an error the old files stay. Thread-safe.
  absl::Status SetTls(const TlsFiles& tls);

  // The next connection from this local port of the machine itself is the server's own: it needs no
  // place. Thread-safe.
  void ExpectSelfCall(uint16_t port);

  // When it returns nothing more is handed over. To be called before the gRPC server is shut down,
  // which keeps what it is given later without ever serving or closing it.
  void StopAccepting();
  // To be called after the gRPC server has ended: sends its last words and closes everything.
  void Close();

 private:
  Door(ListenAddress address, const DoorOptions& options);

  const ListenAddress address_;
  const Http2Limits http2_;
  Places places_;
  std::unique_ptr<Relay> relay_;
  std::unique_ptr<Greeter> greeter_;  // also the gate of the relay's connections
};

// Raises the process's soft limit of file descriptors to the hard one. To be called before a door
// is opened, whose limits follow it.
void RaiseDescriptorLimit();

}  // namespace quire::server::door
