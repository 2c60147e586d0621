// InferenceService: one RPC becomes one request handed to Engine::Submit, or several of a batch.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "quire/v1/inference_service.grpc.pb.h"
#include "server/call/batch.h"
#include "server/call/egress.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/rpc_context.h"
#include "server/grpc/rpc_status.h"
#include "server/identity/grant.h"

namespace quire::server {
namespace {

// The common part of all calls. The handler calls Submit, and gRPC calls OnCancel
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

  // Finds the caller and then reads the call's message, so that strangers have nothing parsed.
  // Reads the request id before the other checks, so that the log shows the id with their errors.
  template <typename Request>
  absl::Status ReadMessage(const grpc::ByteBuffer& bytes, Request& request) {
    has_message_ = HasMessage(bytes);
    if (!has_message_) return absl::CancelledError("the call ended before its message came");
    absl::StatusOr<PrincipalPtr> caller = AuthenticateCaller(context_, parts_);
    const absl::Status read = caller.ok() ? ParseMessage(parts_, bytes, request) : caller.status();
    if (caller.ok()) caller_ = *std::move(caller);
    std::string_view id;
    if constexpr (requires { request.request_id(); }) id = request.request_id();
    ASSIGN_OR_RETURN(id_, FindRequestId(context_, id));
    return read;
  }
  // Returns the parameters of one request of the call, which runs under `id`. Called after
  // ReadMessage.
  template <typename Request>
  absl::StatusOr<engine::GenerateParams> ParamsOf(Request request, const RequestId& id) {
    ASSIGN_OR_RETURN(engine::GenerateParams params, FromProto(std::move(request)));
    params.request_id = id.id;
    params.id_is_name = id.is_name;
    params.deadline = DeadlineOf(context_);
    RETURN_IF_ERROR(Grant(*caller_, params));
    return params;
  }
  template <typename Request>
  absl::StatusOr<engine::GenerateParams> Read(const grpc::ByteBuffer& bytes) {
    Request request;
    RETURN_IF_ERROR(ReadMessage(bytes, request));
    ASSIGN_OR_RETURN(engine::GenerateParams params, ParamsOf(std::move(request), id_));
    params.on_id = [this](const std::string& id) {
      id_.id = id;
      SendId();
    };
    return params;
  }
  // Says that the answer to `params` is one message.
  void AnswerAtOnce(engine::GenerateParams& params) const {
    params.answers_at_once = true;
    params.max_answer_bytes = parts_.max_answer_bytes;
  }
  // Answers with the call's id. Called before the answer begins.
  void SendId() {
    if (!id_.id.empty() && !std::exchange(has_sent_id_, true)) SendRequestId(context_, id_.id);
  }

  absl::Status Submit(engine::GenerateParams params, std::shared_ptr<engine::TokenSink> sink) {
    ASSIGN_OR_RETURN(submitted_, parts_.engine.Submit(std::move(params), std::move(sink)));
    return absl::OkStatus();
  }

  void Cancel() {
    if (submitted_ != nullptr) submitted_->Cancel();
  }
  void Abandon() { context_.TryCancel(); }
  bool IsPastDeadline() const { return DeadlineOf(context_) <= absl::Now(); }

  // Reports how the call ended to the log and the counters.
  grpc::Status End(const absl::Status& status, const engine::RequestSummary& summary) {
    if (!has_message_) return ToGrpcStatus(status);
    SendId();
    NoteEnd(parts_, context_,
            {.rpc = rpc_,
             .caller = caller_.get(),
             .request_id = id_.id,
             .code = status.code(),
             .summary = &summary,
             .total = base::SteadyNow() - start_});
    return ToGrpcStatus(status);
  }

  const ServiceParts& parts() const { return parts_; }
  const RequestId& id() const { return id_; }

 private:
  const ServiceParts& parts_;                   // not owned
  const Rpc rpc_;                               // constant
  grpc::CallbackServerContext& context_;        // not owned; lives until OnDone
  const absl::Time start_ = base::SteadyNow();  // constant
  bool has_message_ = false;                    // constant after Read, as is the next
  PrincipalPtr caller_;                         // null for an unknown caller
  RequestId id_;                                // constant after Submit, as is the next
  bool has_sent_id_ = false;
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
    v1::GenerateStreamResponse message = ToProto(std::move(delta), call_.parts().engine);
    if (!std::exchange(has_written_, true)) {
      message.set_request_id(call_.id().id);
      SetIdentity(call_.parts().engine.server_info(), message);
    }
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

// Returns an answer that says which model and which family of bits it is of.
v1::GenerateResponse ToResponse(std::vector<engine::TokenDelta> samples,
                                const engine::RequestSummary& summary,
                                const engine::Engine& engine) {
  v1::GenerateResponse response = ToProto(std::move(samples), summary, engine);
  SetIdentity(engine.server_info(), response);
  return response;
}

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
    if (!status.ok()) {  // it has no answer
    } else if constexpr (kScores) {
      Answer(ToScores(std::move(samples), summary, call_.parts().engine));
    } else {
      Answer(ToResponse(std::move(samples), summary, call_.parts().engine));
    }
    linger_->Answered();
    Finish(call_.End(status, summary));
  }

 private:
  template <typename Response>
  void Answer(Response response) {
    response.set_request_id(call_.id().id);
    response.set_model(call_.parts().engine.model_info().name);
    SerializeMessage(response, response_);
  }

  absl::Status Start(const grpc::ByteBuffer& request) {
    ASSIGN_OR_RETURN(engine::GenerateParams params, call_.Read<Request>(request));
    call_.AnswerAtOnce(params);
    auto sink = std::make_shared<UnarySink>(params.output.token_ids, call_.parts().egress, *this);
    return call_.Submit(std::move(params), std::move(sink));
  }

  GenerateCall call_;
  grpc::ByteBuffer& response_;  // owned by gRPC; lives until OnDone
  const std::shared_ptr<AnswerLinger> linger_;
};

constexpr int kMaxBatch = 1024;
constexpr uint32_t kMaxInFlight = 256;
constexpr int32_t kDefaultInFlight = 32;

class BatchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public BatchWriter {
 public:
  BatchCall(const ServiceParts& parts, grpc::CallbackServerContext& context,
            const grpc::ByteBuffer& request)
      : call_(parts, Rpc::kGenerateBatch, context) {
    if (absl::Status status = Start(request); !status.ok()) Finish(call_.End(status, {}));
  }

  void OnCancel() override {
    if (batch_ != nullptr) batch_->Cancel();
  }
  void OnWriteDone(bool ok) override { batch_->OnWriteDone(ok); }
  void OnDone() override { delete this; }

  absl::StatusOr<std::shared_ptr<engine::SubmittedRequest>> Submit(
      int32_t index, std::shared_ptr<engine::TokenSink> sink) override {
    absl::StatusOr<engine::GenerateParams>& params = items_[index].params;
    RETURN_IF_ERROR(params.status());
    auto submitted = call_.parts().engine.Submit(*params, std::move(sink));
    if (!absl::IsResourceExhausted(submitted.status())) params = engine::GenerateParams();
    return submitted;
  }
  bool HasTokenIds(int32_t index) const override {
    const absl::StatusOr<engine::GenerateParams>& params = items_[index].params;
    return params.ok() && params->output.token_ids;
  }
  void Write(BatchAnswer answer) override {
    v1::GenerateBatchResponse message;
    message.set_index(static_cast<uint32_t>(answer.index));
    if (answer.status.ok()) {
      v1::GenerateResponse& response = *message.mutable_response();
      response = ToResponse(std::move(answer.samples), answer.summary, call_.parts().engine);
      response.set_request_id(items_[answer.index].id.id);
      response.set_model(call_.parts().engine.model_info().name);
    } else {
      *message.mutable_error() = ToRpcStatus(answer.status);
    }
    SerializeMessage(message, in_flight_);
    StartWrite(&in_flight_);
  }
  void Close(const absl::Status& status, const engine::RequestSummary& total) override {
    const bool late = !status.ok() && call_.IsPastDeadline();
    Finish(call_.End(late ? engine::PastDeadlineStatus() : status, total));
  }
  void Abandon() override { call_.Abandon(); }

 private:
  struct Item {
    RequestId id;
    absl::StatusOr<engine::GenerateParams> params;  // until the engine has the request
  };

  absl::Status Start(const grpc::ByteBuffer& bytes) {
    v1::GenerateBatchRequest request;
    RETURN_IF_ERROR(call_.ReadMessage(bytes, request));
    call_.SendId();
    const int num_requests = request.requests_size();
    if (num_requests < 1 || num_requests > kMaxBatch) {
      return absl::InvalidArgumentError(
          absl::StrFormat("requests: want 1..%d, got %d", kMaxBatch, num_requests));
    }
    const uint32_t max_in_flight =
        request.has_max_in_flight() ? request.max_in_flight() : kDefaultInFlight;
    if (max_in_flight < 1 || max_in_flight > kMaxInFlight) {
      return absl::InvalidArgumentError(
          absl::StrFormat("max_in_flight: want 1..%d, got %d", kMaxInFlight, max_in_flight));
    }
    RETURN_IF_ERROR(FillItems(request));
    batch_ =
        std::make_shared<Batch>(BatchOptions{.num_requests = num_requests,
                                             .max_in_flight = static_cast<int32_t>(max_in_flight),
                                             .linger = call_.parts().linger},
                                call_.parts().egress, *this);
    batch_->Start();
    return absl::OkStatus();
  }

  absl::Status FillItems(v1::GenerateBatchRequest& request) {
    std::map<std::string_view, int> index_of;  // by request id
    items_.resize(static_cast<size_t>(request.requests_size()));
    for (int i = 0; i < request.requests_size(); ++i) {
      v1::GenerateRequest& item = *request.mutable_requests(i);
      RequestId& id = items_[i].id;
      id = item.request_id().empty()
               ? RequestId{.id = absl::StrCat(call_.id().id, "-", i), .is_name = true}
               : RequestId{.id = item.request_id()};
      if (const auto [same, is_new] = index_of.emplace(id.id, i); !is_new) {
        return absl::InvalidArgumentError(
            absl::StrFormat("requests[%d].request_id: want another one than that of requests[%d]",
                            i, same->second));
      }
      absl::Status named = id.is_name ? absl::OkStatus() : CheckRequestId(id.id);
      items_[i].params = named.ok() ? call_.ParamsOf(std::move(item), id) : std::move(named);
      if (!items_[i].params.ok()) continue;
      call_.AnswerAtOnce(*items_[i].params);
      items_[i].params->on_id = [&id](const std::string& in_use) { id.id = in_use; };
    }
    return absl::OkStatus();
  }

  GenerateCall call_;
  std::shared_ptr<Batch> batch_;  // constant; null if the call was refused
  std::vector<Item> items_;       // egress thread only, as is the next
  grpc::ByteBuffer in_flight_;
};

using RawInferenceService = v1::InferenceService::WithRawCallbackMethod_Generate<
    v1::InferenceService::WithRawCallbackMethod_GenerateStream<
        v1::InferenceService::WithRawCallbackMethod_GenerateBatch<
            v1::InferenceService::WithRawCallbackMethod_Score<v1::InferenceService::Service>>>>;

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

  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateBatch(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override {
    return new BatchCall(parts_, *context, *request);
  }

 private:
  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGenerateService(const ServiceParts& parts) {
  return std::make_unique<GenerateService>(parts);
}

}  // namespace quire::server
