#include "client/connection.h"

#include <cstdlib>
#include <set>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"

#include "base/mutex.h"
#include "base/small_file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "quire/v1/control_service.grpc.pb.h"
#include "quire/v1/inference_service.grpc.pb.h"
#include "quire/v1/prefix_service.grpc.pb.h"
#include "quire/v1/session_service.grpc.pb.h"
#include "quire/v1/tenant_service.grpc.pb.h"
#include "quire/v1/token_service.grpc.pb.h"

namespace quire::client {
namespace {

absl::StatusOr<std::string> ReadFile(const char* flag, const std::string& path) {
  const auto because = [&](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", base::ToAbsl(why)));
  };
  absl::StatusOr<std::string> text = base::ReadSmallFile(path);
  if (!text.ok()) return because(base::ToStd(text.status().message()));
  if (text->empty()) return because(path + ": want a file with content, got an empty one");
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const ConnectionOptions& options) {
  const bool tls = options.tls || !options.tls_ca.empty() || !options.tls_cert.empty() ||
                   !options.tls_key.empty() || !options.tls_server_name.empty();
  if (!tls) return grpc::InsecureChannelCredentials();
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls_cert and --tls_key go together");
  }
  grpc::SslCredentialsOptions ssl;
  if (!options.tls_ca.empty()) {
    ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadFile("tls_ca", options.tls_ca));
  }
  if (!options.tls_cert.empty()) {
    ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadFile("tls_cert", options.tls_cert));
    ASSIGN_OR_RETURN(ssl.pem_private_key, ReadFile("tls_key", options.tls_key));
  }
  return grpc::SslCredentials(ssl);
}

absl::StatusOr<std::string> ReadToken(const ConnectionOptions& options) {
  std::string token;
  if (!options.token_file.empty()) {
    ASSIGN_OR_RETURN(token, ReadFile("token_file", options.token_file));
  } else if (const char* from_environment = std::getenv("QUIRE_TOKEN")) {
    token = from_environment;
  }
  absl::StripAsciiWhitespace(&token);
  return token;
}

// The payload of a status that keeps the retry delay, as text.
constexpr char kRetryDelay[] = "quire.client/retry_delay";

std::optional<absl::Duration> ReadRetryDelay(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const auto& detail : details.details()) {
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&retry)) {
      return absl::Seconds(retry.retry_delay().seconds()) +
             absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const auto text = status.GetPayload(kRetryDelay);
  absl::Duration delay;
  if (!text || !absl::ParseDuration(std::string(*text), &delay)) return std::nullopt;
  return delay;
}

absl::StatusOr<std::string> ServerTarget(std::string_view server) {
  constexpr std::string_view kDefaultPort = ":8100";
  std::string_view address = server;
  for (const std::string_view scheme : {"http://", "https://", "grpc://"}) {
    if (address.starts_with(scheme)) address.remove_prefix(scheme.size());
  }
  if (address == server && (server.starts_with("unix:") || server.find("//") != server.npos)) {
    return std::string(server);
  }
  if (address.ends_with('/')) address.remove_suffix(1);
  if (address.empty() || address.find('/') != address.npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--server: want HOST:PORT like 127.0.0.1:8100, got \"%s\"", server));
  }
  if (address.starts_with("ipv4:") || address.starts_with("ipv6:")) return std::string(address);
  const size_t colon = address.find(':');
  const bool is_bare_ipv6 = colon != address.npos && address.front() != '[' &&
                            address.find(':', colon + 1) != address.npos;
  if (is_bare_ipv6) {
    return absl::StrCat("[", base::ToAbsl(address), "]", base::ToAbsl(kDefaultPort));
  }
  const bool has_port = address.front() == '[' ? !address.ends_with(']') : colon != address.npos;
  return absl::StrCat(base::ToAbsl(address), has_port ? "" : base::ToAbsl(kDefaultPort));
}

struct Connection::Impl {
  // Constant after construction.
  ConnectionOptions options;
  std::string token;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::InferenceService::Stub> inference;
  std::unique_ptr<v1::TokenService::Stub> tokens;
  std::unique_ptr<v1::PrefixService::Stub> prefixes;
  std::unique_ptr<v1::SessionService::Stub> sessions;
  std::unique_ptr<v1::ControlService::Stub> control;
  std::unique_ptr<v1::TenantService::Stub> tenants;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;

  base::Mutex mu;
  base::CondVar ended;
  std::set<grpc::ClientContext*> in_flight ABSL_GUARDED_BY(mu);
  int num_streams ABSL_GUARDED_BY(mu) = 0;  // streams whose contexts exist
  base::CondVar cancelled;
  int64_t num_cancels ABSL_GUARDED_BY(mu) = 0;

  // Waits until the contexts of all streams are destroyed. Otherwise a thread of gRPC might destroy
  // the context that has the last reference to the channel. That thread would then have to end
  // itself, and gRPC would abort.
  ~Impl() {
    base::MutexLock lock(mu);
    while (num_streams > 0) ended.WaitFor(mu, std::chrono::seconds(1));
  }

  void StreamBegins() {
    base::MutexLock lock(mu);
    ++num_streams;
  }
  void StreamGone() {
    base::MutexLock lock(mu);
    --num_streams;
    ended.NotifyAll();
  }

  void Begin(grpc::ClientContext& context, std::optional<absl::Duration> default_timeout,
             std::optional<absl::Duration> timeout = std::nullopt) {
    if (!timeout.has_value()) timeout = options.timeout;
    if (!timeout.has_value()) timeout = default_timeout;
    if (timeout.has_value()) context.set_deadline(absl::ToChronoTime(absl::Now() + *timeout));
    if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
    base::MutexLock lock(mu);
    in_flight.insert(&context);
  }

  void End(grpc::ClientContext& context) {
    base::MutexLock lock(mu);
    in_flight.erase(&context);
  }

  template <typename Stub, typename Request, typename Response>
  absl::Status Call(Stub& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response,
                    std::optional<absl::Duration> default_timeout = kUnaryTimeout) {
    grpc::ClientContext context;
    Begin(context, default_timeout);
    const grpc::Status status = (stub.*method)(&context, request, response);
    End(context);
    return ToStatus(status);
  }

  absl::Status ToStatus(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    const std::optional<absl::Duration> delay = ReadRetryDelay(status);
    const std::string text = delay ? absl::FormatDuration(*delay) : "";
    absl::Status out(
        static_cast<absl::StatusCode>(status.error_code()),
        absl::StrCat(status.error_message(), delay ? "; retry after " : "", text, Cure(status)));
    if (delay) out.SetPayload(kRetryDelay, absl::Cord(text));
    return out;
  }

  std::string Cure(const grpc::Status& status) const {
    switch (status.error_code()) {
      case grpc::StatusCode::UNAVAILABLE:
        if (channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) return "";
        if (absl::StrContains(status.error_message(), "http1.x")) {
          return absl::StrFormat(
              ". %s speaks HTTP: is it the admin port? Name the address of the server's --listen "
              "with --server",
              options.server);
        }
        return absl::StrFormat(
            ". No server answers at %s: start one with \"quire-server --model PATH --listen %s\", "
            "or "
            "name another with --server; if it uses TLS, give --tls_ca",
            options.server, options.server);
      case grpc::StatusCode::UNAUTHENTICATED:
        return ". Give the server's token with --token_file or in QUIRE_TOKEN";
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        return ". Give it longer with --timeout";
      case grpc::StatusCode::UNIMPLEMENTED:
        return absl::StrFormat(
            ". %s does not offer this call: an address that strangers can reach serves no "
            "operators (see the server's --control_listen)",
            options.server);
      default:
        return "";
    }
  }
};

namespace {

// A StreamReactor lives at least until OnDone, which gRPC calls exactly once. OnDone destroys the
// context.
class StreamReactor final : public StreamCall,
                            public grpc::ClientReadReactor<v1::GenerateStreamResponse> {
 public:
  using OnStatus = std::function<void(grpc::ClientContext&, const grpc::Status&)>;

  // `on_gone` is called last, after the context was destroyed.
  StreamReactor(Connection::OnMessage on_message, OnStatus on_status, std::function<void()> on_gone)
      : on_message_(std::move(on_message)),
        on_status_(std::move(on_status)),
        on_gone_(std::move(on_gone)) {
    context_.emplace();
  }

  // Valid until OnDone.
  grpc::ClientContext& context() {
    base::MutexLock lock(mu_);
    return *context_;
  }

  void Start(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request,
             std::shared_ptr<StreamReactor> self) {
    self_ = std::move(self);
    stub.async()->GenerateStream(&context(), &request, this);
    StartRead(&response_);
    StartCall();
  }

  void Cancel() override {
    base::MutexLock lock(mu_);
    if (context_.has_value()) context_->TryCancel();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    on_message_(*this, response_);
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<StreamReactor> alive = std::move(self_);
    on_status_(context(), status);
    {
      base::MutexLock lock(mu_);
      context_.reset();
    }
    on_gone_();
  }

  base::Mutex mu_;
  std::optional<grpc::ClientContext> context_ ABSL_GUARDED_BY(mu_);
  v1::GenerateStreamResponse response_;
  Connection::OnMessage on_message_;
  OnStatus on_status_;
  std::function<void()> on_gone_;
  std::shared_ptr<StreamReactor> self_;  // from Start to OnDone
};

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::Create(const ConnectionOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  ASSIGN_OR_RETURN(impl->options.server, ServerTarget(options.server));
  impl->options.tls |= options.server.starts_with("https://");
  ASSIGN_OR_RETURN(impl->token, ReadToken(options));
  ASSIGN_OR_RETURN(const auto credentials, MakeCredentials(impl->options));
  grpc::ChannelArguments arguments;
  arguments.SetUserAgentPrefix("quire");
  arguments.SetMaxReceiveMessageSize(-1);  // prompt logprobs of a long prompt are large
  // Gives this channel a TCP connection of its own. Otherwise gRPC would share one TCP connection
  // among the channels of a load.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A server that restarts is found again soon. By default gRPC looks again after 1 s at first, and
  // after up to 2 min later, and calls fail meanwhile.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  if (!options.tls_server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls_server_name);
  }
  impl->channel = grpc::CreateCustomChannel(impl->options.server, credentials, arguments);
  impl->inference = v1::InferenceService::NewStub(impl->channel);
  impl->tokens = v1::TokenService::NewStub(impl->channel);
  impl->prefixes = v1::PrefixService::NewStub(impl->channel);
  impl->sessions = v1::SessionService::NewStub(impl->channel);
  impl->control = v1::ControlService::NewStub(impl->channel);
  impl->tenants = v1::TenantService::NewStub(impl->channel);
  impl->health = grpc::health::v1::Health::NewStub(impl->channel);
  return std::unique_ptr<Connection>(new Connection(std::move(impl)));
}

Connection::Connection(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Connection::~Connection() = default;

absl::Status Connection::Generate(const v1::GenerateRequest& request,
                                  v1::GenerateResponse* response) {
  return impl_->Call(*impl_->inference, &v1::InferenceService::Stub::Generate, request, response,
                     std::nullopt);
}

absl::Status Connection::GenerateBatch(const v1::GenerateBatchRequest& request,
                                       const OnAnswer& on_answer) {
  grpc::ClientContext context;
  impl_->Begin(context, std::nullopt);
  const auto reader = impl_->inference->GenerateBatch(&context, request);
  for (v1::GenerateBatchResponse answer; reader->Read(&answer);) on_answer(answer);
  const grpc::Status status = reader->Finish();
  impl_->End(context);
  return impl_->ToStatus(status);
}

absl::Status Connection::Score(const v1::ScoreRequest& request, v1::ScoreResponse* response) {
  return impl_->Call(*impl_->inference, &v1::InferenceService::Stub::Score, request, response,
                     std::nullopt);
}

absl::Status Connection::Tokenize(const v1::TokenizeRequest& request,
                                  v1::TokenizeResponse* response) {
  return impl_->Call(*impl_->tokens, &v1::TokenService::Stub::Tokenize, request, response);
}

absl::Status Connection::Detokenize(const v1::DetokenizeRequest& request,
                                    v1::DetokenizeResponse* response) {
  return impl_->Call(*impl_->tokens, &v1::TokenService::Stub::Detokenize, request, response);
}

absl::Status Connection::ApplyChatTemplate(const v1::ApplyChatTemplateRequest& request,
                                           v1::ApplyChatTemplateResponse* response) {
  return impl_->Call(*impl_->tokens, &v1::TokenService::Stub::ApplyChatTemplate, request, response);
}

absl::Status Connection::ListModels(const v1::ListModelsRequest& request,
                                    v1::ListModelsResponse* response) {
  return impl_->Call(*impl_->control, &v1::ControlService::Stub::ListModels, request, response);
}

absl::Status Connection::GetModelInfo(const v1::GetModelInfoRequest& request,
                                      v1::GetModelInfoResponse* response) {
  return impl_->Call(*impl_->control, &v1::ControlService::Stub::GetModelInfo, request, response);
}

absl::Status Connection::GetServerInfo(const v1::GetServerInfoRequest& request,
                                       v1::GetServerInfoResponse* response) {
  return impl_->Call(*impl_->control, &v1::ControlService::Stub::GetServerInfo, request, response);
}

absl::Status Connection::GetCacheMap(const v1::GetCacheMapRequest& request,
                                     v1::GetCacheMapResponse* response) {
  return impl_->Call(*impl_->control, &v1::ControlService::Stub::GetCacheMap, request, response);
}

absl::Status Connection::GetStats(const v1::GetStatsRequest& request,
                                  v1::GetStatsResponse* response) {
  return impl_->Call(*impl_->control, &v1::ControlService::Stub::GetStats, request, response);
}

absl::Status Connection::GetQuota(const v1::GetQuotaRequest& request, v1::Tenant* response) {
  return impl_->Call(*impl_->tenants, &v1::TenantService::Stub::GetQuota, request, response);
}

absl::Status Connection::ListTenants(const v1::ListTenantsRequest& request,
                                     v1::ListTenantsResponse* response) {
  return impl_->Call(*impl_->tenants, &v1::TenantService::Stub::ListTenants, request, response);
}

absl::Status Connection::CreateSession(const v1::CreateSessionRequest& request,
                                       v1::Session* session) {
  return impl_->Call(*impl_->sessions, &v1::SessionService::Stub::CreateSession, request, session);
}

absl::Status Connection::GetSession(const v1::GetSessionRequest& request, v1::Session* session) {
  return impl_->Call(*impl_->sessions, &v1::SessionService::Stub::GetSession, request, session);
}

absl::Status Connection::ListSessions(const v1::ListSessionsRequest& request,
                                      v1::ListSessionsResponse* response) {
  return impl_->Call(*impl_->sessions, &v1::SessionService::Stub::ListSessions, request, response);
}

absl::Status Connection::AppendToSession(const v1::AppendToSessionRequest& request,
                                         v1::AppendToSessionResponse* response) {
  const auto timeout = request.compute() ? std::nullopt : std::optional(kUnaryTimeout);
  return impl_->Call(*impl_->sessions, &v1::SessionService::Stub::AppendToSession, request,
                     response, timeout);
}

absl::Status Connection::ForkSession(const v1::ForkSessionRequest& request,
                                     v1::ForkSessionResponse* response) {
  return impl_->Call(*impl_->sessions, &v1::SessionService::Stub::ForkSession, request, response);
}

absl::Status Connection::CloseSession(const v1::CloseSessionRequest& request) {
  v1::CloseSessionResponse response;
  return impl_->Call(*impl_->sessions, &v1::SessionService::Stub::CloseSession, request, &response);
}

absl::Status Connection::CreatePrefix(const v1::CreatePrefixRequest& request, v1::Prefix* prefix) {
  return impl_->Call(*impl_->prefixes, &v1::PrefixService::Stub::CreatePrefix, request, prefix,
                     std::nullopt);
}

absl::Status Connection::GetPrefix(const v1::GetPrefixRequest& request, v1::Prefix* prefix) {
  return impl_->Call(*impl_->prefixes, &v1::PrefixService::Stub::GetPrefix, request, prefix);
}

absl::Status Connection::UpdatePrefix(const v1::UpdatePrefixRequest& request, v1::Prefix* prefix) {
  return impl_->Call(*impl_->prefixes, &v1::PrefixService::Stub::UpdatePrefix, request, prefix);
}

absl::Status Connection::WarmPrefix(const v1::WarmPrefixRequest& request, v1::Prefix* prefix) {
  return impl_->Call(*impl_->prefixes, &v1::PrefixService::Stub::WarmPrefix, request, prefix,
                     std::nullopt);
}

absl::Status Connection::ListPrefixes(const v1::ListPrefixesRequest& request,
                                      v1::ListPrefixesResponse* response) {
  return impl_->Call(*impl_->prefixes, &v1::PrefixService::Stub::ListPrefixes, request, response);
}

absl::Status Connection::DeletePrefix(const v1::DeletePrefixRequest& request) {
  v1::DeletePrefixResponse response;
  return impl_->Call(*impl_->prefixes, &v1::PrefixService::Stub::DeletePrefix, request, &response);
}

absl::StatusOr<std::string> Connection::CheckHealth(std::string_view service) {
  using grpc::health::v1::HealthCheckResponse;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(std::string(service));
  HealthCheckResponse response;
  RETURN_IF_ERROR(
      impl_->Call(*impl_->health, &grpc::health::v1::Health::Stub::Check, request, &response));
  return HealthCheckResponse::ServingStatus_Name(response.status());
}

std::shared_ptr<StreamCall> Connection::StartStream(const v1::GenerateRequest& request,
                                                    OnMessage on_message, OnDone on_done,
                                                    std::optional<absl::Duration> timeout) {
  auto reactor = std::make_shared<StreamReactor>(
      std::move(on_message),
      [this, on_done = std::move(on_done)](grpc::ClientContext& context,
                                           const grpc::Status& status) {
        impl_->End(context);
        on_done(impl_->ToStatus(status));
      },
      [impl = impl_.get()] { impl->StreamGone(); });
  impl_->Begin(reactor->context(), std::nullopt, timeout);
  impl_->StreamBegins();
  reactor->Start(*impl_->inference, request, reactor);
  return reactor;
}

absl::Status Connection::Stream(const v1::GenerateRequest& request, const OnMessage& on_message,
                                std::optional<absl::Duration> timeout) {
  base::Mutex mu;
  base::CondVar done;
  std::optional<absl::Status> result;
  const auto on_done = [&](const absl::Status& status) {
    base::MutexLock lock(mu);
    result = status;
    done.NotifyOne();
  };
  StartStream(request, on_message, on_done, timeout);
  base::MutexLock lock(mu);
  while (!result.has_value()) done.WaitFor(mu, std::chrono::seconds(1));
  return *result;
}

void Connection::CancelAll() {
  // A context is removed from in_flight under this lock before it is destroyed. So all contexts of
  // in_flight exist until the loop ends.
  base::MutexLock lock(impl_->mu);
  for (grpc::ClientContext* context : impl_->in_flight) context->TryCancel();
  ++impl_->num_cancels;
  impl_->cancelled.NotifyAll();
}

int64_t Connection::num_cancels() const {
  base::MutexLock lock(impl_->mu);
  return impl_->num_cancels;
}

bool Connection::Wait(absl::Duration delay, int64_t num_cancels) const {
  const absl::Time end = absl::Now() + delay;
  base::MutexLock lock(impl_->mu);
  while (impl_->num_cancels == num_cancels) {
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) return true;
    impl_->cancelled.WaitFor(impl_->mu, absl::ToChronoNanoseconds(left));
  }
  return false;
}

const ConnectionOptions& Connection::options() const { return impl_->options; }

}  // namespace quire::client
