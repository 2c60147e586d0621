#include "server/grpc/grpc_server.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "server/config/listen_address.h"
#include "server/door/door.h"
#include "server/grpc/grpc_calls.h"
#include "server/grpc/request_gate.h"
#include "server/service/services.h"

namespace quire::server {
namespace {

constexpr char kInferenceService[] = "quire.v1.InferenceService";
constexpr char kPrefixService[] = "quire.v1.PrefixService";
constexpr char kSessionService[] = "quire.v1.SessionService";
constexpr char kTokenService[] = "quire.v1.TokenService";
constexpr char kTenantService[] = "quire.v1.TenantService";
constexpr char kControlService[] = "quire.v1.ControlService";

void SetMilliseconds(grpc::ServerBuilder& builder, const char* argument, absl::Duration value) {
  builder.AddChannelArgument(
      argument, static_cast<int>(absl::ToInt64Milliseconds(std::min(value, absl::Hours(24)))));
}

// Keeps the gRPC library initialized for the rest of the process. Otherwise its last user would
// shut it down, and might wait 10 seconds for a gRPC thread that is polling.
void KeepGrpcUp() {
  static const bool up = (::grpc_init(), true);
  static_cast<void>(up);
}

// The door limits the memory that clients can make gRPC use. This is a second limit, in case
// something gets past the door.
constexpr size_t kMemoryBackstop = size_t{1} << 30;

// A message may take so many times --max_message_bytes when it is parsed. Token ids take the most
// of what honest clients send: two million of them, each a byte on the wire, are within it by
// default.
constexpr size_t kParsedBytesPerByte = 6;
constexpr size_t kLeastParsedBytes = 1 << 20;  // where messages are small

void SetBounds(grpc::ServerBuilder& builder, const ServerConfig& config) {
  builder.SetMaxReceiveMessageSize(config.max_message_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, config.max_header_bytes);
  builder.SetResourceQuota(grpc::ResourceQuota("quire").Resize(kMemoryBackstop));
  // A few bytes of a compressed message may expand to gigabytes. The loop makes gRPC refuse
  // compressed calls with a status. The channel argument after the loop makes sure that gRPC
  // decompresses nothing.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

void SetKeepalive(grpc::ServerBuilder& builder, const ServerConfig& config) {
  SetMilliseconds(builder, GRPC_ARG_KEEPALIVE_TIME_MS, config.keepalive_time);
  SetMilliseconds(builder, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config.keepalive_timeout);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // The shortest interval at which clients may send keepalive pings.
  SetMilliseconds(builder, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                  absl::Seconds(10));
}

// Sets the age at which the server sends GOAWAY on a connection. The client then opens a new
// connection, which may reach a server that was added in the meantime.
void SetConnectionAge(grpc::ServerBuilder& builder, const ServerConfig& config) {
  if (config.max_connection_age > absl::ZeroDuration()) {
    SetMilliseconds(builder, GRPC_ARG_MAX_CONNECTION_AGE_MS, config.max_connection_age);
  }
  if (config.max_connection_age_grace > absl::ZeroDuration()) {
    SetMilliseconds(builder, GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, config.max_connection_age_grace);
  }
}

door::DoorOptions DoorOptionsOf(const ServerConfig& config) {
  const auto milliseconds = [](absl::Duration duration) {
    return std::chrono::milliseconds(absl::ToInt64Milliseconds(duration));
  };
  const auto message_bytes = static_cast<size_t>(config.max_message_bytes);
  const auto total_bytes = static_cast<size_t>(config.max_unfinished_mib) << 20;
  door::DoorOptions options;
  options.max_connections = static_cast<size_t>(config.max_connections);
  options.max_per_address = static_cast<size_t>(config.max_connections_per_address);
  options.handshake_time = milliseconds(config.handshake_timeout);
  options.http2.header_block_bytes = static_cast<size_t>(config.max_header_bytes);
  options.http2.header_list_bytes = 4 * options.http2.header_block_bytes;
  options.http2.request_list_bytes = options.http2.header_block_bytes;
  options.http2.message_bytes = message_bytes;
  // A connection has room for one message of the largest size, even when `total_bytes` is small.
  // The added quarter is for the overhead of 64 bytes for each DATA frame. It suffices for frames
  // of 256 bytes or more.
  options.http2.connection_bytes = std::max(total_bytes / 4, message_bytes + message_bytes / 4);
  options.http2.total_bytes = total_bytes;
  options.http2.streams = static_cast<size_t>(config.max_concurrent_streams);
  options.http2.total_streams = static_cast<size_t>(config.max_open_calls);
  options.http2.message_time = milliseconds(config.message_timeout);
  return options;
}

}  // namespace

// One listening server, with its services and the door in front of it.
struct GrpcServer::Listener {
  const ServiceParts parts;  // which the calls borrow
  CallTable calls;
  std::vector<std::string> names;  // of the services, for health
  std::unique_ptr<grpc::CallbackGenericService> service;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;  // declared after the service that it uses
  std::unique_ptr<door::Door> door;      // declared after the acceptor that it hands connections to

  explicit Listener(const ServiceParts& services) : parts(services) {}

  void Add(const char* name, void (*add)(const ServiceParts&, CallTable&)) {
    names.emplace_back(name);
    add(parts, calls);
  }

  absl::Status Listen(const ServerConfig& config, const TlsFiles& tls, const std::string& where,
                      bool reflection, door::PeerGate gate, door::PeerDirectory& peers,
                      door::DoorCounters& door_counters) {
    ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(where));
    grpc::ServerBuilder builder;
    SetBounds(builder, config);
    SetKeepalive(builder, config);
    SetConnectionAge(builder, config);
    if (reflection) AddReflectionCalls(parts, names, calls);
    service = ServeCalls(calls);
    builder.RegisterCallbackGenericService(service.get());
    // The door terminates TLS, so connections from the door are local and without TLS.
    acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::InsecureServerCredentials());
    server = builder.BuildAndStart();
    if (server == nullptr) return absl::InternalError("gRPC cannot start");
    const auto hand_over = [this](base::UniqueFd fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.fd = fd.Release();
      acceptor->HandleNewConnection(&parameters);
    };
    if (gate == nullptr) {
      gate = MakeRequestGate(parts.call.identities, parts.trusts_place, parts.call.counters);
    }
    ASSIGN_OR_RETURN(door, door::Door::Open(std::move(address), tls, DoorOptionsOf(config),
                                            std::move(gate), hand_over, peers, door_counters));
    return absl::OkStatus();
  }

  void Stop(absl::Time deadline) {
    if (door != nullptr) door->StopAccepting();
    if (server == nullptr) return;
    server->Shutdown(absl::ToChronoTime(deadline));
    server->Wait();
    if (door != nullptr) door->Close();
  }

  void SetServing(bool serving) {
    grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
    health->SetServingStatus("", serving);
    for (const std::string& name : names) health->SetServingStatus(name, serving);
  }
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const ServerConfig& config,
                                                              const TlsFiles& tls,
                                                              const GrpcServerParts& parts) {
  KeepGrpcUp();
  std::unique_ptr<GrpcServer> server(
      new GrpcServer(parts.engine, ParseAccessLogMode(config.access_log)));
  RETURN_IF_ERROR(server->Listen(config, tls, parts));
  return server;
}

GrpcServer::GrpcServer(engine::Engine& engine, AccessLogMode access_log)
    : engine_(engine), access_log_(access_log) {}

GrpcServer::~GrpcServer() { Stop(absl::Now()); }

absl::Status GrpcServer::Listen(const ServerConfig& config, const TlsFiles& tls,
                                const GrpcServerParts& parts) {
  grpc::EnableDefaultHealthCheckService(true);
  ServiceParts services{
      .call = {.egress = parts.egress,
               .counters = parts.counters,
               .access_log = access_log_,
               .peers = peers_,
               .identities = parts.identities,
               .linger = config.engine.stalled_stream_timeout},
      .engine = parts.engine,
      .open_calls = parts.open_calls,
      .drain = [this] { Drain(); },
      .max_prefix_ttl = config.max_prefix_ttl,
      .max_parsed_bytes = std::max(
          kLeastParsedBytes, kParsedBytesPerByte * static_cast<size_t>(config.max_message_bytes)),
      .max_answer_bytes = config.max_answer_mib << 20};
  control_on_main_ = ServesControlOnListen(config);
  services.serves_operators = control_on_main_;
  main_ = std::make_unique<Listener>(services);
  main_->Add(kInferenceService, AddGenerateCalls);
  main_->Add(kTokenService, AddTokenCalls);
  main_->Add(kPrefixService, AddPrefixCalls);
  main_->Add(kSessionService, AddSessionCalls);
  main_->Add(kTenantService, AddTenantCalls);
  if (control_on_main_) {
    main_->Add(kControlService, AddControlCalls);
  } else {
    AddControlCalls(main_->parts, main_->calls);  // in part, so health names it not
  }
  RETURN_IF_ERROR(main_->Listen(config, tls, config.listen, control_on_main_, parts.gate, peers_,
                                parts.door_counters));
  if (!config.control_listen.empty()) {
    const auto address = ParseListenAddress(config.control_listen);
    services.trusts_place = address.ok() && IsLoopback(*address);
    services.serves_operators = true;
    control_ = std::make_unique<Listener>(services);
    control_->Add(kControlService, AddControlCalls);
    control_->Add(kTenantService, AddTenantCalls);
    RETURN_IF_ERROR(control_->Listen(config, tls, config.control_listen, true, parts.gate, peers_,
                                     parts.door_counters));
  }
  SetServing(true);
  listening_ = true;
  if (draining_) SetServing(false);  // a drain began while Listen ran
  return absl::OkStatus();
}

std::string GrpcServer::address() const { return main_->door->address().ToString(); }

std::string GrpcServer::control_address() const {
  if (control_on_main_) return address();
  return control_ == nullptr ? "" : control_->door->address().ToString();
}

absl::Status GrpcServer::SetTls(const TlsFiles& tls) {
  for (Listener* listener : {main_.get(), control_.get()}) {
    if (listener != nullptr) RETURN_IF_ERROR(listener->door->SetTls(tls));
  }
  return absl::OkStatus();
}

void GrpcServer::ExpectSelfCall(uint16_t port) { main_->door->ExpectSelfCall(port); }

void GrpcServer::AnnounceDrain() {
  draining_ = true;
  if (listening_) SetServing(false);
}

void GrpcServer::SetHealthy(bool healthy) {
  if (!draining_) SetServing(healthy);
  if (draining_) SetServing(false);  // a drain began between the two lines
}

void GrpcServer::Drain() {
  AnnounceDrain();
  engine_.StartDrain();
}

void GrpcServer::Stop(absl::Time deadline) {
  for (Listener* listener : {main_.get(), control_.get()}) {
    if (listener != nullptr) listener->Stop(deadline);
  }
}

void GrpcServer::SetServing(bool serving) {
  main_->SetServing(serving);
  if (control_ != nullptr) control_->SetServing(serving);
}

}  // namespace quire::server
