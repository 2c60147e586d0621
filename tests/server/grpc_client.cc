#include "tests/server/grpc_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "absl/strings/str_format.h"
#include "grpc/health/v1/health.pb.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace quire::testing {
namespace {

std::shared_ptr<grpc::ChannelCredentials> Credentials(const GrpcClientOptions& options) {
  if (options.ca.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({options.ca, options.key, options.cert});
}

// A call, whose every step is waited for.
class RawCall {
 public:
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
          const std::string& bytes, const CallOptions& options) {
    for (const auto& [key, value] : options.metadata) context_.AddMetadata(key, value);
    context_.set_deadline(absl::ToChronoTime(absl::Now() + options.timeout));
    call_ = grpc::GenericStub(channel).PrepareCall(&context_, path, &queue_);
    call_->StartCall(nullptr);
    Wait();
    const grpc::Slice slice(bytes);
    call_->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    Wait();
  }
  ~RawCall() {
    if (finished_) return;
    context_.TryCancel();
    Finish();
  }
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  void WaitForAnswer() {
    call_->ReadInitialMetadata(nullptr);
    Wait();
  }
  bool Read(std::string& bytes) {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, nullptr);
    grpc::Slice slice;
    if (!Wait() || !buffer.DumpToSingleSlice(&slice).ok()) return false;
    bytes.assign(reinterpret_cast<const char*>(slice.begin()), slice.size());
    return true;
  }
  void Cancel() { context_.TryCancel(); }
  Outcome Finish() {
    finished_ = true;
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
    Outcome outcome;
    outcome.status = absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                  base::ToAbsl(status.error_message()));
    outcome.details.ParseFromString(status.error_details());
    for (const auto& [key, value] : context_.GetServerInitialMetadata()) {
      outcome.initial_metadata.emplace(std::string(key.data(), key.size()),
                                       std::string(value.data(), value.size()));
    }
    return outcome;
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return ok;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool finished_ = false;
};

class RealReader final : public MessageReader {
 public:
  RealReader(const std::shared_ptr<grpc::Channel>& channel, server::Rpc rpc,
             const google::protobuf::Message& request, const CallOptions& options)
      : call_(channel, server::PathOf(rpc), request.SerializeAsString(), options) {}

  bool Read(google::protobuf::Message& message) override {
    std::string bytes;
    return call_.Read(bytes) && message.ParseFromString(bytes);
  }
  void Cancel() override { call_.Cancel(); }
  Outcome Finish() override { return call_.Finish(); }

 private:
  RawCall call_;
};

class RealUnreadCall final : public UnreadCall {
 public:
  RealUnreadCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                 const std::string& bytes, const CallOptions& options)
      : call_(channel, path, bytes, options) {
    call_.WaitForAnswer();
  }

 private:
  RawCall call_;
};

}  // namespace

struct GrpcClient::Channel {
  std::shared_ptr<grpc::Channel> channel;
};

GrpcClient::GrpcClient(const std::string& address, const GrpcClientOptions& options)
    : channel_([&] {
        grpc::ChannelArguments arguments;
        // The client shares no connection with other clients.
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // the windows of streams do not grow
        if (!options.ca.empty()) arguments.SetSslTargetNameOverride("localhost");
        return std::make_unique<Channel>(
            Channel{grpc::CreateCustomChannel(address, Credentials(options), arguments)});
      }()) {}

GrpcClient::~GrpcClient() = default;

std::unique_ptr<MessageReader> GrpcClient::Begin(server::Rpc rpc,
                                                 const google::protobuf::Message& request,
                                                 const CallOptions& options) {
  return std::make_unique<RealReader>(channel_->channel, rpc, request, options);
}

Outcome GrpcClient::CallRaw(const std::string& path, const std::string& bytes,
                            const CallOptions& options, std::string* answer) {
  RawCall call(channel_->channel, path, bytes, options);
  std::string read;
  if (call.Read(read) && answer != nullptr) *answer = std::move(read);
  return call.Finish();
}

std::unique_ptr<UnreadCall> GrpcClient::CallUnread(const std::string& path,
                                                   const std::string& bytes,
                                                   const CallOptions& options) {
  return std::make_unique<RealUnreadCall>(channel_->channel, path, bytes, options);
}

Health GrpcClient::CheckHealth(std::string_view service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(std::string(service));
  grpc::health::v1::HealthCheckResponse response;
  std::string bytes;
  const absl::Status status =
      CallRaw("/grpc.health.v1.Health/Check", request.SerializeAsString(), {}, &bytes).status;
  if (absl::IsNotFound(status)) return Health::kNoSuchService;
  if (!status.ok()) return Health::kUnreachable;
  if (!response.ParseFromString(bytes)) return Health::kUnknown;
  if (response.status() == response.SERVING) return Health::kServing;
  return response.status() == response.NOT_SERVING ? Health::kNotServing : Health::kUnknown;
}

grpc::reflection::v1::ServerReflectionResponse GrpcClient::Reflect(
    std::string_view version, const grpc::reflection::v1::ServerReflectionRequest& request) {
  std::string bytes;
  const absl::Status status =
      CallRaw(absl::StrFormat("/grpc.reflection.%s.ServerReflection/ServerReflectionInfo", version),
              request.SerializeAsString(), {}, &bytes)
          .status;
  grpc::reflection::v1::ServerReflectionResponse response;
  if (status.ok()) response.ParseFromString(bytes);
  return response;
}

bool GrpcClient::HasReflection() {
  grpc::reflection::v1::ServerReflectionRequest list;
  list.set_list_services("");
  const bool v1 = Reflect("v1", list).has_list_services_response();
  EXPECT_EQ(Reflect("v1alpha", list).has_list_services_response(), v1);
  return v1;
}

}  // namespace quire::testing
