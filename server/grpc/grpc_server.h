#pragma once

// The gRPC server: listens, reports health, drains and stops.

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/engine.h"
#include "server/call/access_log.h"
#include "server/call/egress.h"
#include "server/call/rpc_counters.h"
#include "server/config/server_config.h"
#include "server/config/tls_files.h"
#include "server/door/door_counters.h"
#include "server/door/peer_directory.h"
#include "server/identity/identity_store.h"

namespace quire::server {

// The parts of a GrpcServer. All are borrowed and must outlive the server. The threads of `engine`
// call the sinks of requests, and the sinks use `egress`. So `egress` must also outlive `engine`.
struct GrpcServerParts {
  engine::Engine& engine;
  Egress& egress;
  RpcCounters& counters;
  OpenCalls& open_calls;
  door::DoorCounters& door_counters;
  const IdentityStore& identities;
  door::PeerGate gate = nullptr;  // at the door; null: MakeRequestGate, as all but tests have it
};

// One or two gRPC servers. InferenceService, TokenService, PrefixService and SessionService are
// served at `listen`. ControlService and reflection are served at `control_listen`, or at `listen`
// if `control_listen` is not set and unknown callers cannot reach `listen`. TenantService and
// health are served at both addresses. Thread-safe.
class GrpcServer {
 public:
  // Starts to serve, and sets health to SERVING. The engine must be ready. Returns Unavailable when
  // the server cannot listen.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const ServerConfig& config,
                                                           const TlsFiles& tls,
                                                           const GrpcServerParts& parts);
  ~GrpcServer();  // stops at once
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // Returns the address that the server listens at, with the port that was chosen.
  std::string address() const;
  std::string control_address() const;  // empty: ControlService is not served

  // Sets the certificates for new connections. On InvalidArgument the old ones stay.
  absl::Status SetTls(const TlsFiles& tls);
  // Announces that the server will connect to itself from local port `port`. That connection does
  // not count against the connection limits.
  void ExpectSelfCall(uint16_t port);

  // Sets health to SERVING if `healthy`, and otherwise to NOT_SERVING. During a drain it stays
  // NOT_SERVING. The caller passes false while requests would hang or fail.
  void SetHealthy(bool healthy);
  // Sets health to NOT_SERVING; new requests are still taken.
  void AnnounceDrain();
  // Sets health to NOT_SERVING and refuses new requests. Accepted requests run to their end.
  void Drain();
  // Takes no more calls, lets the running calls finish until `deadline`, and cancels the rest.
  // Returns when the last call has ended.
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
  std::unique_ptr<Listener> main_;     // constant after Listen, as are the next two
  std::unique_ptr<Listener> control_;  // null unless `control_listen` is set
  bool control_on_main_ = false;
  std::atomic<bool> listening_ = false;
  std::atomic<bool> draining_ = false;
};

}  // namespace quire::server
