// InferenceService: one RPC becomes one request handed to Engine::Submit.

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "base/clock.h"
#include "base/status_macros.h"
#include "quire/v1/inference_service.grpc.pb.h"
#include "server/call/egress.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/rpc_context.h"
#include "server/identity/grant.h"

namespace quire::server {
namespace {

// The common part of unary and streaming calls. The handler calls Submit, and gRPC calls OnCancel
// only after the handler has returned its reactor. So `submitted_` is set before OnCancel runs,
// however early the client cancels.
class GenerateCall {
 public:
  GenerateCall(const ServiceParts& parts, Rpc rpc, grpc::CallbackServerContext& context)
      : parts_(parts), rpc_(rpc), context_(context) {
    parts_.open_calls.Begin();
  }
  ~GenerateCall() { parts_.open_calls.End(); }
  GenerateCall(const GenerateCall&) = delete;
  GenerateCall& operator=(const GenerateCall&) = delete;

  // Returns the parameters of the request in `bytes`. Reads the request id before the other checks,
  // so that the log shows the id with their errors.
  template <typename Request>
  absl::StatusOr<engine::GenerateParams> Read(const grpc::ByteBuffer& bytes) {
    has_message_ = HasMessage(bytes);
    if (!has_message_) return absl::CancelledError("the call ended before its message came");
    Request request;
    const absl::Status parsed = ParseMessage(bytes, request);
    ASSIGN_OR_RETURN(request_id_, TakeRequestId(context_, request.request_id()));
    ASSIGN_OR_RETURN(caller_, AuthenticateCaller(context_, parts_));
    RETURN_IF_ERROR(parsed);
    ASSIGN_OR_RETURN(engine::GenerateParams params, FromProto(request));
    params.request_id = request_id_;
    params.deadline = DeadlineOf(context_);
    RETURN_IF_ERROR(Grant(*caller_, params));
    return params;
  }

  absl::Status Submit(engine::GenerateParams params, std::shared_ptr<engine::TokenSink> sink) {
    ASSIGN_OR_RETURN(submitted_, parts_.engine.Submit(std::move(params), std::move(sink)));
    return absl::OkStatus();
  }

  void Cancel() {
    if (submitted_ != nullptr) submitted_->Cancel();
  }
  void Abandon() { context_.TryCancel(); }

  // Reports how the call ended to the log and the counters.
  grpc::Status End(const absl::Status& status, const engine::RequestSummary& summary) {
    if (!has_message_) return ToGrpcStatus(status);
    NoteEnd(parts_, context_,
            {.rpc = rpc_,
             .caller = caller_.get(),
             .request_id = request_id_,
             .code = status.code(),
             .summary = &summary,
             .total = base::SteadyNow() - start_});
    return ToGrpcStatus(status);
  }

  const ServiceParts& parts() const { return parts_; }
  const std::string& request_id() const { return request_id_; }

 private:
  const ServiceParts& parts_;                   // not owned
  const Rpc rpc_;                               // constant
  grpc::CallbackServerContext& context_;        // not owned; lives until OnDone
  const absl::Time start_ = base::SteadyNow();  // constant
  bool has_message_ = false;                    // constant after Read, as are the next two
  std::string request_id_;
  PrincipalPtr caller_;  // null for an unknown caller
  std::shared_ptr<engine::SubmittedRequest> submitted_;
};

class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public StreamWriter {
 public:
  StreamCall(const ServiceParts& parts, grpc::CallbackServerContext& context,
             const grpc::ByteBuffer& request)
      : call_(parts, Rpc::kGenerateStream, context) {
    if (absl::Status status = Start(request); !status.ok()) Finish(call_.End(status, {}));
  }

  void OnCancel() override { call_.Cancel(); }
  void OnWriteDone(bool ok) override {
    if (!ok) call_.Cancel();
    sink_->OnWriteDone(ok);
  }
  void OnDone() override { delete this; }

  void Write(engine::TokenDelta delta, const engine::RequestSummary* summary) override {
    v1::GenerateStreamResponse message = ToProto(std::move(delta));
    if (!std::exchange(has_written_, true)) message.set_request_id(call_.request_id());
    if (summary != nullptr) {
      *message.mutable_usage() = ToProto(summary->usage);
      *message.mutable_timings() = ToProto(summary->timings);
    }
    SerializeMessage(message, in_flight_);
    StartWrite(&in_flight_);
  }
  void Close(const absl::Status& status, const engine::RequestSummary& summary) override {
    Finish(call_.End(status, summary));
  }
  void Abandon() override { call_.Abandon(); }

 private:
  absl::Status Start(const grpc::ByteBuffer& request) {
    ASSIGN_OR_RETURN(engine::GenerateParams params, call_.Read<v1::GenerateRequest>(request));
    sink_ = std::make_shared<StreamSink>(StreamSinkOptions{.num_samples = params.sampling.n,
                                                           .token_ids = params.output.token_ids,
                                                           .linger = call_.parts().linger},
                                         call_.parts().egress, *this);
    return call_.Submit(std::move(params), sink_);
  }

  GenerateCall call_;
  std::shared_ptr<StreamSink> sink_;  // constant
  grpc::ByteBuffer in_flight_;        // egress thread only
  bool has_written_ = false;          // egress thread only
};

// A call of Generate or Score, which answer with one message.
template <typename Request>
class UnaryCall final : public grpc::ServerUnaryReactor, public UnaryWriter {
  static constexpr bool kScores = std::is_same_v<Request, v1::ScoreRequest>;

 public:
  UnaryCall(const ServiceParts& parts, grpc::CallbackServerContext& context,
            const grpc::ByteBuffer& request, grpc::ByteBuffer& response)
      : call_(parts, kScores ? Rpc::kScore : Rpc::kGenerate, context),
        response_(response),
        linger_(std::make_shared<AnswerLinger>(parts.egress, parts.linger,
                                               [this] { call_.Abandon(); })) {
    if (absl::Status status = Start(request); !status.ok()) Finish(call_.End(status, {}));
  }

  void OnCancel() override { call_.Cancel(); }
  void OnDone() override {
    linger_->Done();
    delete this;
  }

  void Close(std::vector<engine::TokenDelta> samples, const absl::Status& status,
             const engine::RequestSummary& summary) override {
    if constexpr (kScores) {
      Answer(ToScores(std::move(samples), summary));
    } else {
      Answer(ToProto(std::move(samples), summary));
    }
    linger_->Answered();
    Finish(call_.End(status, summary));
  }

 private:
  template <typename Response>
  void Answer(Response response) {
    response.set_request_id(call_.request_id());
    response.set_model(call_.parts().engine.model_info().name);
    SerializeMessage(response, response_);
  }

  absl::Status Start(const grpc::ByteBuffer& request) {
    ASSIGN_OR_RETURN(engine::GenerateParams params, call_.Read<Request>(request));
    params.answers_at_once = true;
    auto sink = std::make_shared<UnarySink>(params.output.token_ids, call_.parts().egress, *this);
    return call_.Submit(std::move(params), std::move(sink));
  }

  GenerateCall call_;
  grpc::ByteBuffer& response_;  // owned by gRPC; lives until OnDone
  const std::shared_ptr<AnswerLinger> linger_;
};

using RawInferenceService = v1::InferenceService::WithRawCallbackMethod_Generate<
    v1::InferenceService::WithRawCallbackMethod_GenerateStream<
        v1::InferenceService::WithRawCallbackMethod_Score<v1::InferenceService::Service>>>;

class GenerateService final : public RawInferenceService {
 public:
  explicit GenerateService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return new UnaryCall<v1::GenerateRequest>(parts_, *context, *request, *response);
  }

  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    return new UnaryCall<v1::ScoreRequest>(parts_, *context, *request, *response);
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateStream(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override {
    return new StreamCall(parts_, *context, *request);
  }

 private:
  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGenerateService(const ServiceParts& parts) {
  return std::make_unique<GenerateService>(parts);
}

}  // namespace quire::server
