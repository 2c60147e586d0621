#pragma once

// Listens, tells health, stops.

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/engine.h"
#include "server/access_log.h"
#include "server/door/door_counters.h"
#include "server/door/peer_directory.h"
#include "server/egress.h"
#include "server/identity/identity_store.h"
#include "server/rpc_counters.h"
#include "server/server_config.h"
#include "server/tls_files.h"

namespace quire::server {

// Everything borrowed must outlive the server; `egress` must outlive `engine` too, whose threads
// call the sinks.
struct GrpcServerParts {
  engine::Engine& engine;
  Egress& egress;
  RpcCounters& counters;
  OpenCalls& open_calls;
  door::DoorCounters& door_counters;
  const IdentityStore& identities;
};

// One or two gRPC servers: at `listen` InferenceService, TokenService and health, and at
// `control_listen`, or else where it is safe at `listen`, ControlService and reflection.
// Thread-safe.
class GrpcServer {
 public:
  // Serves at once, with health SERVING: the engine is ready. Unavailable when it cannot listen.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const ServerConfig& config,
                                                           const TlsFiles& tls,
                                                           const GrpcServerParts& parts);
  ~GrpcServer();  // stops at once
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // Where it listens, with the port that was chosen.
  std::string address() const;
  std::string control_address() const;  // empty: ControlService is not served

  // Certificates for the connections that come from now on. On an error, InvalidArgument, the old
  // ones stay.
  absl::Status SetTls(const TlsFiles& tls);
  // The next connection from this local port of the machine itself is the server's own: it needs no
  // place.
  void ExpectSelfCall(uint16_t port);

  // Health says NOT_SERVING while requests would hang or fail, SERVING again when they would not.
  void SetHealthy(bool healthy);
  // Health turns NOT_SERVING; new requests are still taken.
  void AnnounceDrain();
  // That, and new requests are refused; what runs goes on.
  void Drain();
  // Takes no more calls, gives those that run until `deadline`, cancels the rest, and returns when
  // the last has ended.
  void Stop(absl::Time deadline);

 private:
  struct Listener;

  GrpcServer(engine::Engine& engine, AccessLogMode access_log);
  absl::Status Listen(const ServerConfig& config, const TlsFiles& tls,
                      const GrpcServerParts& parts);
  void SetServing(bool serving);

  engine::Engine& engine_;  // not owned
  door::PeerDirectory peers_;
  AccessLog access_log_;
  std::unique_ptr<Listener> main_;     // constant after Listen
  std::unique_ptr<Listener> control_;  // likewise; null without an address of its own
  bool control_on_main_ = false;       // likewise
  std::atomic<bool> listening_ = false;
  std::atomic<bool> draining_ = false;
};

}  // namespace quire::server
