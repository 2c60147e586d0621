#include "tests/server/rpc_client.h"

#include <future>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "absl/strings/str_format.h"
#include "grpc/health/v1/health.pb.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "quire/v1/control_service.grpc.pb.h"
#include "quire/v1/inference_service.grpc.pb.h"
#include "quire/v1/prefix_service.grpc.pb.h"
#include "quire/v1/tenant_service.grpc.pb.h"
#include "quire/v1/token_service.grpc.pb.h"

namespace quire::testing {
namespace {

std::shared_ptr<grpc::ChannelCredentials> Credentials(const RpcClientOptions& options) {
  if (options.ca.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({options.ca, options.key, options.cert});
}

void Prepare(const CallOptions& options, grpc::ClientContext& context) {
  for (const auto& [key, value] : options.metadata) context.AddMetadata(key, value);
  context.set_deadline(absl::ToChronoTime(absl::Now() + options.timeout));
}

void Conclude(const grpc::ClientContext& context, const grpc::Status& status, Outcome& outcome) {
  outcome.status = absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                base::ToAbsl(status.error_message()));
  outcome.details.ParseFromString(status.error_details());
  for (const auto& [key, value] : context.GetServerInitialMetadata()) {
    outcome.initial_metadata.emplace(std::string(key.data(), key.size()),
                                     std::string(value.data(), value.size()));
  }
}

template <typename Stub, typename Request, typename Response>
Reply<Response> Call(Stub& stub,
                     grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                     const Request& request, const CallOptions& options) {
  grpc::ClientContext context;
  Prepare(options, context);
  Reply<Response> reply;
  const grpc::Status status = (stub.*method)(&context, request, &reply.response);
  Conclude(context, status, reply);
  return reply;
}

template <typename Response>
class RealReader final : public RpcReader<Response> {
  using Reader = std::unique_ptr<grpc::ClientReader<Response>>;

 public:
  template <typename Request>
  RealReader(v1::InferenceService::Stub& stub,
             Reader (v1::InferenceService::Stub::*method)(grpc::ClientContext*, const Request&),
             const Request& request, const CallOptions& options) {
    Prepare(options, context_);
    reader_ = (stub.*method)(&context_, request);
  }
  bool Read(Response& message) override { return reader_->Read(&message); }
  void Cancel() override { context_.TryCancel(); }
  Outcome Finish() override {
    Outcome outcome;
    const grpc::Status status = reader_->Finish();
    Conclude(context_, status, outcome);
    return outcome;
  }

 private:
  grpc::ClientContext context_;
  Reader reader_;
};

class RealUnreadCall final : public UnreadCall {
 public:
  RealUnreadCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                 const std::string& bytes, const CallOptions& options) {
    Prepare(options, context_);
    call_ = grpc::GenericStub(channel).PrepareCall(&context_, path, &queue_);
    call_->StartCall(nullptr);
    Wait();
    const grpc::Slice slice(bytes);
    call_->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    Wait();
    call_->ReadInitialMetadata(nullptr);
    Wait();
  }
  ~RealUnreadCall() override {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
  }

 private:
  void Wait() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace

struct RpcClient::Stubs {
  std::shared_ptr<grpc::Channel> channel;
  v1::InferenceService::Stub inference;
  v1::TokenService::Stub token;
  v1::ControlService::Stub control;
  v1::PrefixService::Stub prefix;
  v1::TenantService::Stub tenant;

  explicit Stubs(std::shared_ptr<grpc::Channel> c)
      : channel(std::move(c)),
        inference(channel),
        token(channel),
        control(channel),
        prefix(channel),
        tenant(channel) {}

  // Makes a unary call with the bytes of a request, and gets the bytes of the answer.
  grpc::Status CallRaw(const std::string& method, const std::string& request,
                       std::string& response) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(request);
    auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer buffer;
    grpc::Status status;
    call->Finish(&buffer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    std::vector<grpc::Slice> slices;
    if (status.ok() && buffer.Dump(&slices).ok()) {
      for (const grpc::Slice& part : slices) {
        response.append(reinterpret_cast<const char*>(part.begin()), part.size());
      }
    }
    return status;
  }
};

RpcClient::RpcClient(const std::string& address, const RpcClientOptions& options)
    : stubs_([&] {
        grpc::ChannelArguments arguments;
        // The client shares no connection with other clients.
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // the windows of streams do not grow
        if (!options.ca.empty()) arguments.SetSslTargetNameOverride("localhost");
        return std::make_unique<Stubs>(
            grpc::CreateCustomChannel(address, Credentials(options), arguments));
      }()) {}

RpcClient::~RpcClient() = default;

Reply<v1::GenerateResponse> RpcClient::Generate(const v1::GenerateRequest& request,
                                                const CallOptions& options) {
  return Call(stubs_->inference, &v1::InferenceService::Stub::Generate, request, options);
}
std::unique_ptr<RpcStream> RpcClient::GenerateStream(const v1::GenerateRequest& request,
                                                     const CallOptions& options) {
  return std::make_unique<RealReader<v1::GenerateStreamResponse>>(
      stubs_->inference, &v1::InferenceService::Stub::GenerateStream, request, options);
}
std::unique_ptr<RpcBatch> RpcClient::GenerateBatch(const v1::GenerateBatchRequest& request,
                                                   const CallOptions& options) {
  return std::make_unique<RealReader<v1::GenerateBatchResponse>>(
      stubs_->inference, &v1::InferenceService::Stub::GenerateBatch, request, options);
}
Reply<v1::ScoreResponse> RpcClient::Score(const v1::ScoreRequest& request,
                                          const CallOptions& options) {
  return Call(stubs_->inference, &v1::InferenceService::Stub::Score, request, options);
}
Reply<v1::TokenizeResponse> RpcClient::Tokenize(const v1::TokenizeRequest& request,
                                                const CallOptions& options) {
  return Call(stubs_->token, &v1::TokenService::Stub::Tokenize, request, options);
}
Reply<v1::DetokenizeResponse> RpcClient::Detokenize(const v1::DetokenizeRequest& request,
                                                    const CallOptions& options) {
  return Call(stubs_->token, &v1::TokenService::Stub::Detokenize, request, options);
}
Reply<v1::ApplyChatTemplateResponse> RpcClient::ApplyChatTemplate(
    const v1::ApplyChatTemplateRequest& request, const CallOptions& options) {
  return Call(stubs_->token, &v1::TokenService::Stub::ApplyChatTemplate, request, options);
}
Reply<v1::ListModelsResponse> RpcClient::ListModels(const CallOptions& options) {
  return Call(stubs_->control, &v1::ControlService::Stub::ListModels, {}, options);
}
Reply<v1::GetModelInfoResponse> RpcClient::GetModelInfo(const v1::GetModelInfoRequest& request,
                                                        const CallOptions& options) {
  return Call(stubs_->control, &v1::ControlService::Stub::GetModelInfo, request, options);
}
Reply<v1::GetServerInfoResponse> RpcClient::GetServerInfo(const CallOptions& options) {
  return Call(stubs_->control, &v1::ControlService::Stub::GetServerInfo, {}, options);
}
Reply<v1::GetStatsResponse> RpcClient::GetStats(const CallOptions& options) {
  return Call(stubs_->control, &v1::ControlService::Stub::GetStats, {}, options);
}
Reply<v1::Tenant> RpcClient::GetQuota(const CallOptions& options) {
  return Call(stubs_->tenant, &v1::TenantService::Stub::GetQuota, {}, options);
}
Reply<v1::ListTenantsResponse> RpcClient::ListTenants(const CallOptions& options) {
  return Call(stubs_->tenant, &v1::TenantService::Stub::ListTenants, {}, options);
}
Reply<v1::AbortResponse> RpcClient::Abort(const v1::AbortRequest& request,
                                          const CallOptions& options) {
  return Call(stubs_->control, &v1::ControlService::Stub::Abort, request, options);
}
Reply<v1::DrainResponse> RpcClient::Drain(const CallOptions& options) {
  return Call(stubs_->control, &v1::ControlService::Stub::Drain, {}, options);
}
Reply<v1::FlushPrefixCacheResponse> RpcClient::FlushPrefixCache(const CallOptions& options) {
  return Call(stubs_->control, &v1::ControlService::Stub::FlushPrefixCache, {}, options);
}
Reply<v1::Prefix> RpcClient::CreatePrefix(const v1::CreatePrefixRequest& request,
                                          const CallOptions& options) {
  return Call(stubs_->prefix, &v1::PrefixService::Stub::CreatePrefix, request, options);
}
Reply<v1::Prefix> RpcClient::GetPrefix(const v1::GetPrefixRequest& request,
                                       const CallOptions& options) {
  return Call(stubs_->prefix, &v1::PrefixService::Stub::GetPrefix, request, options);
}
Reply<v1::ListPrefixesResponse> RpcClient::ListPrefixes(const v1::ListPrefixesRequest& request,
                                                        const CallOptions& options) {
  return Call(stubs_->prefix, &v1::PrefixService::Stub::ListPrefixes, request, options);
}
Reply<v1::Prefix> RpcClient::UpdatePrefix(const v1::UpdatePrefixRequest& request,
                                          const CallOptions& options) {
  return Call(stubs_->prefix, &v1::PrefixService::Stub::UpdatePrefix, request, options);
}
Reply<v1::DeletePrefixResponse> RpcClient::DeletePrefix(const v1::DeletePrefixRequest& request,
                                                        const CallOptions& options) {
  return Call(stubs_->prefix, &v1::PrefixService::Stub::DeletePrefix, request, options);
}
Reply<v1::Prefix> RpcClient::WarmPrefix(const v1::WarmPrefixRequest& request,
                                        const CallOptions& options) {
  return Call(stubs_->prefix, &v1::PrefixService::Stub::WarmPrefix, request, options);
}

Health RpcClient::CheckHealth(std::string_view service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(std::string(service));
  grpc::health::v1::HealthCheckResponse response;
  std::string bytes;
  const grpc::Status status =
      stubs_->CallRaw("/grpc.health.v1.Health/Check", request.SerializeAsString(), bytes);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return Health::kNoSuchService;
  if (!status.ok()) return Health::kUnreachable;
  if (!response.ParseFromString(bytes)) return Health::kUnknown;
  if (response.status() == response.SERVING) return Health::kServing;
  return response.status() == response.NOT_SERVING ? Health::kNotServing : Health::kUnknown;
}

grpc::reflection::v1::ServerReflectionResponse RpcClient::Reflect(
    std::string_view version, const grpc::reflection::v1::ServerReflectionRequest& request) {
  std::string bytes;
  const grpc::Status status = stubs_->CallRaw(
      absl::StrFormat("/grpc.reflection.%s.ServerReflection/ServerReflectionInfo", version),
      request.SerializeAsString(), bytes);
  grpc::reflection::v1::ServerReflectionResponse response;
  if (status.ok()) response.ParseFromString(bytes);
  return response;
}

Outcome RpcClient::CallRaw(const std::string& path, const std::string& bytes,
                           const CallOptions& options) {
  grpc::ClientContext context;
  Prepare(options, context);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> ended;
  grpc::GenericStub(stubs_->channel)
      .UnaryCall(&context, path, {}, &request, &response,
                 [&ended](grpc::Status status) { ended.set_value(std::move(status)); });
  Outcome outcome;
  Conclude(context, ended.get_future().get(), outcome);
  return outcome;
}

std::unique_ptr<UnreadCall> RpcClient::CallUnread(const std::string& path, const std::string& bytes,
                                                  const CallOptions& options) {
  return std::make_unique<RealUnreadCall>(stubs_->channel, path, bytes, options);
}

bool RpcClient::HasReflection() {
  grpc::reflection::v1::ServerReflectionRequest list;
  list.set_list_services("");
  const bool v1 = Reflect("v1", list).has_list_services_response();
  EXPECT_EQ(Reflect("v1alpha", list).has_list_services_response(), v1);
  return v1;
}

}  // namespace quire::testing
