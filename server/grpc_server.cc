#include "server/grpc_server.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/service_type.h>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "server/listen_address.h"
#include "server/rpc_context.h"

namespace quire::server {
namespace {

constexpr char kInferenceService[] = "quire.v1.InferenceService";
constexpr char kTokenService[] = "quire.v1.TokenService";
constexpr char kControlService[] = "quire.v1.ControlService";

// Reflection for one server, or not: its library turns it on for every server of the process.
class Reflection final : public grpc::ServerBuilderOption {
 public:
  explicit Reflection(bool served) : served_(served) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    auto reflection = std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>();
    std::erase_if(*plugins, [name = reflection->name()](const auto& plugin) {
      return plugin->name() == name;
    });
    if (served_) plugins->push_back(std::move(reflection));
  }

 private:
  const bool served_;
};

std::shared_ptr<grpc::ServerCredentials> Credentials(const TlsFiles& tls) {
  if (!tls.enabled()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      tls.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                            : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.client_ca;
  options.pem_key_cert_pairs.push_back({tls.private_key, tls.cert_chain});
  return grpc::SslServerCredentials(options);
}

void SetMilliseconds(grpc::ServerBuilder& builder, const char* argument, absl::Duration value) {
  builder.AddChannelArgument(
      argument, static_cast<int>(absl::ToInt64Milliseconds(std::min(value, absl::Hours(24)))));
}

}  // namespace

// One listening server and the services behind it.
struct GrpcServer::Listener {
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::vector<std::string> names;        // for health
  std::unique_ptr<grpc::Server> server;  // after the services that it uses
  ListenAddress address;

  void Add(const char* name, std::unique_ptr<grpc::Service> service) {
    names.emplace_back(name);
    services.push_back(std::move(service));
  }

  absl::Status Listen(const ServerConfig& config, const TlsFiles& tls, const std::string& where,
                      bool reflection) {
    ASSIGN_OR_RETURN(address, ParseListenAddress(where));
    grpc::ServerBuilder builder;
    // Without this a second server would share the port, and each would get some of the
    // connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_concurrent_streams);
    SetMilliseconds(builder, GRPC_ARG_KEEPALIVE_TIME_MS, config.keepalive_time);
    SetMilliseconds(builder, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config.keepalive_timeout);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    // Clients may ask too, at most this often.
    SetMilliseconds(builder, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                    absl::Seconds(10));
    builder.SetMaxReceiveMessageSize(config.max_message_bytes);
    builder.SetOption(std::make_unique<Reflection>(reflection));
    for (const auto& service : services) builder.RegisterService(service.get());
    int port = 0;
    builder.AddListeningPort(address.ToString(), Credentials(tls), &port);
    server = builder.BuildAndStart();
    if (server == nullptr || port <= 0) {
      return absl::UnavailableError(absl::StrFormat(
          "%s: cannot listen: the port is taken or the address is not this machine's",
          address.ToString()));
    }
    address.port = static_cast<uint16_t>(port);
    return absl::OkStatus();
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
  std::unique_ptr<GrpcServer> server(new GrpcServer(parts.engine));
  RETURN_IF_ERROR(server->Listen(config, tls, parts));
  return server;
}

GrpcServer::GrpcServer(engine::Engine& engine) : engine_(engine) {}

GrpcServer::~GrpcServer() { Stop(absl::Now()); }

absl::Status GrpcServer::Listen(const ServerConfig& config, const TlsFiles& tls,
                                const GrpcServerParts& parts) {
  grpc::EnableDefaultHealthCheckService(true);
  const ServiceParts services{.engine = parts.engine,
                              .egress = parts.egress,
                              .counters = parts.counters,
                              .open_calls = parts.open_calls,
                              .tokens = parts.tokens,
                              .drain = [this] { Drain(); },
                              .linger = config.engine.stalled_stream_timeout};
  main_ = std::make_unique<Listener>();
  main_->Add(kInferenceService, MakeGenerateService(services));
  main_->Add(kTokenService, MakeTokenService(services));
  control_on_main_ = ServesControlOnListen(config);
  if (control_on_main_) main_->Add(kControlService, MakeControlService(services));
  RETURN_IF_ERROR(main_->Listen(config, tls, config.listen, control_on_main_));
  if (!config.control_listen.empty()) {
    control_ = std::make_unique<Listener>();
    control_->Add(kControlService, MakeControlService(services));
    RETURN_IF_ERROR(control_->Listen(config, tls, config.control_listen, true));
  }
  SetServing(true);
  listening_ = true;
  if (draining_) SetServing(false);  // somebody asked before we were done
  return absl::OkStatus();
}

std::string GrpcServer::address() const { return main_->address.ToString(); }

std::string GrpcServer::control_address() const {
  if (control_on_main_) return main_->address.ToString();
  return control_ == nullptr ? "" : control_->address.ToString();
}

void GrpcServer::Drain() {
  draining_ = true;
  if (listening_) SetServing(false);
  engine_.StartDrain();
}

void GrpcServer::Stop(absl::Time deadline) {
  for (Listener* listener : {main_.get(), control_.get()}) {
    if (listener == nullptr || listener->server == nullptr) continue;
    listener->server->Shutdown(absl::ToChronoTime(deadline));
    listener->server->Wait();
  }
}

void GrpcServer::SetServing(bool serving) {
  main_->SetServing(serving);
  if (control_ != nullptr) control_->SetServing(serving);
}

}  // namespace quire::server
