// InferenceService: one RPC becomes one request handed to Engine::Submit, or several of a batch.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "quire/v1/inference_service.pb.h"
#include "server/call/batch.h"
#include "server/call/egress.h"
#include "server/identity/grant.h"
#include "server/service/parsing.h"
#include "server/service/proto_conversion.h"
#include "server/service/rpc_status.h"
#include "server/service/services.h"

namespace quire::server {
namespace {

// The common part of all calls. OnMessage calls Submit, and OnCancel comes after OnMessage. So
// `submitted_` is set before OnCancel runs, however early the client cancels.
class GenerateCall : public Call {
 public:
  GenerateCall(const ServiceParts& parts, Rpc rpc, Transport& transport)
      : Call(parts.call, rpc, transport), parts_(parts) {
    parts_.open_calls.Begin();
  }
  ~GenerateCall() override { parts_.open_calls.End(); }

  void OnMessage(std::string_view bytes) final {
    if (const absl::Status status = Begin(bytes); !status.ok()) EndWith(status, {});
  }
  void OnCancel() override {
    if (submitted_ != nullptr) submitted_->Cancel();
  }

 protected:
  // Reads the message and submits what it asks for.
  virtual absl::Status Begin(std::string_view bytes) = 0;

  // Finds the caller and then reads the call's message, so that strangers have nothing parsed.
  // Reads the request id before the other checks, so that the log shows the id with their errors.
  template <typename Request>
  absl::Status ReadMessage(std::string_view bytes, Request& request) {
    absl::Status read = Authenticate();
    if (read.ok()) read = ParseMessage(bytes, parts_.max_parsed_bytes, request);
    std::string_view id;
    if constexpr (requires { request.request_id(); }) id = request.request_id();
    RETURN_IF_ERROR(TakeId(id));
    return read;
  }
  // Returns the parameters of one request of the call, which runs under `id`. Called after
  // ReadMessage.
  template <typename Request>
  absl::StatusOr<engine::GenerateParams> ParamsOf(Request request, const RequestId& id) {
    ASSIGN_OR_RETURN(engine::GenerateParams params, FromProto(std::move(request)));
    params.request_id = id.id;
    params.id_is_name = id.is_name;
    params.deadline = transport().Deadline();
    RETURN_IF_ERROR(Grant(caller(), params));
    return params;
  }
  template <typename Request>
  absl::StatusOr<engine::GenerateParams> ReadParams(std::string_view bytes) {
    Request request;
    RETURN_IF_ERROR(ReadMessage(bytes, request));
    ASSIGN_OR_RETURN(engine::GenerateParams params, ParamsOf(std::move(request), id()));
    params.on_id = [this](const std::string& id) {
      set_id(id);
      SendId();
    };
    return params;
  }
  // Says that the answer to `params` is one message.
  void AnswerAtOnce(engine::GenerateParams& params) const {
    params.answers_at_once = true;
    params.max_answer_bytes = parts_.max_answer_bytes;
  }

  absl::Status Submit(engine::GenerateParams params, std::shared_ptr<engine::TokenSink> sink) {
    ASSIGN_OR_RETURN(submitted_, parts_.engine.Submit(std::move(params), std::move(sink)));
    return absl::OkStatus();
  }

  // Ends the call. The log shows the summary.
  void EndWith(const absl::Status& status, const engine::RequestSummary& summary,
               const google::protobuf::Message* answer = nullptr) {
    End(status, answer, &summary);
  }

  const ServiceParts& parts() const { return parts_; }

 private:
  const ServiceParts& parts_;                            // not owned
  std::shared_ptr<engine::SubmittedRequest> submitted_;  // constant after OnMessage
};

class StreamCall final : public GenerateCall, public StreamWriter {
 public:
  StreamCall(const ServiceParts& parts, Transport& transport)
      : GenerateCall(parts, Rpc::kGenerateStream, transport) {}

  void OnWritten(bool ok) override {
    if (!ok) OnCancel();
    sink_->OnWriteDone(ok);
  }

  void Write(engine::TokenDelta delta, const engine::RequestSummary* summary) override {
    v1::GenerateStreamResponse message = ToProto(std::move(delta), parts().engine);
    if (!std::exchange(has_written_, true)) {
      message.set_request_id(id().id);
      SetIdentity(parts().engine.server_info(), message);
    }
    if (summary != nullptr) {
      *message.mutable_usage() = ToProto(summary->usage);
      *message.mutable_timings() = ToProto(summary->timings);
    }
    transport().Write(message);
  }
  void Close(const absl::Status& status, const engine::RequestSummary& summary) override {
    EndWith(status, summary);
  }
  void Abandon() override { transport().Cancel(); }

 private:
  absl::Status Begin(std::string_view bytes) override {
    ASSIGN_OR_RETURN(engine::GenerateParams params, ReadParams<v1::GenerateRequest>(bytes));
    sink_ = std::make_shared<StreamSink>(StreamSinkOptions{.num_samples = params.sampling.n,
                                                           .token_ids = params.output.token_ids,
                                                           .linger = parts().call.linger},
                                         parts().call.egress, *this);
    return Submit(std::move(params), sink_);
  }

  std::shared_ptr<StreamSink> sink_;  // constant after OnMessage
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
class OneAnswerCall final : public GenerateCall, public UnaryWriter {
  static constexpr bool kScores = std::is_same_v<Request, v1::ScoreRequest>;

 public:
  OneAnswerCall(const ServiceParts& parts, Transport& transport)
      : GenerateCall(parts, kScores ? Rpc::kScore : Rpc::kGenerate, transport) {}

  void Close(std::vector<engine::TokenDelta> samples, const absl::Status& status,
             const engine::RequestSummary& summary) override {
    if (!status.ok()) {
      EndWith(status, summary);  // it has no answer
    } else if constexpr (kScores) {
      Answer(ToScores(std::move(samples), summary, parts().engine), summary);
    } else {
      Answer(ToResponse(std::move(samples), summary, parts().engine), summary);
    }
  }

 private:
  template <typename Response>
  void Answer(Response response, const engine::RequestSummary& summary) {
    response.set_request_id(id().id);
    response.set_model(parts().engine.model_info().name);
    EndWith(absl::OkStatus(), summary, &response);
  }

  absl::Status Begin(std::string_view bytes) override {
    ASSIGN_OR_RETURN(engine::GenerateParams params, ReadParams<Request>(bytes));
    AnswerAtOnce(params);
    auto sink = std::make_shared<UnarySink>(params.output.token_ids, parts().call.egress, *this);
    return Submit(std::move(params), std::move(sink));
  }
};

constexpr int kMaxBatch = 1024;
constexpr uint32_t kMaxInFlight = 256;
constexpr int32_t kDefaultInFlight = 32;

class BatchCall final : public GenerateCall, public BatchWriter {
 public:
  BatchCall(const ServiceParts& parts, Transport& transport)
      : GenerateCall(parts, Rpc::kGenerateBatch, transport) {}

  void OnCancel() override {
    if (batch_ != nullptr) batch_->Cancel();
  }
  void OnWritten(bool ok) override { batch_->OnWriteDone(ok); }

  absl::StatusOr<std::shared_ptr<engine::SubmittedRequest>> Submit(
      int32_t index, std::shared_ptr<engine::TokenSink> sink) override {
    absl::StatusOr<engine::GenerateParams>& params = items_[index].params;
    RETURN_IF_ERROR(params.status());
    auto submitted = parts().engine.Submit(*params, std::move(sink));
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
      response = ToResponse(std::move(answer.samples), answer.summary, parts().engine);
      response.set_request_id(items_[answer.index].id.id);
      response.set_model(parts().engine.model_info().name);
    } else {
      *message.mutable_error() = ToRpcStatus(answer.status);
    }
    transport().Write(message);
  }
  void Close(const absl::Status& status, const engine::RequestSummary& total) override {
    EndWith(status.ok() ? status : CancelStatus(), total);
  }
  void Abandon() override { transport().Cancel(); }

 private:
  struct Item {
    RequestId id;
    absl::StatusOr<engine::GenerateParams> params;  // until the engine has the request
  };

  absl::Status Begin(std::string_view bytes) override {
    v1::GenerateBatchRequest request;
    RETURN_IF_ERROR(ReadMessage(bytes, request));
    SendId();
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
                                             .linger = parts().call.linger},
                                parts().call.egress, *this);
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
               ? RequestId{.id = absl::StrCat(this->id().id, "-", i), .is_name = true}
               : RequestId{.id = item.request_id()};
      if (const auto [same, is_new] = index_of.emplace(id.id, i); !is_new) {
        return absl::InvalidArgumentError(
            absl::StrFormat("requests[%d].request_id: want another one than that of requests[%d]",
                            i, same->second));
      }
      absl::Status named = id.is_name ? absl::OkStatus() : CheckRequestId(id.id);
      items_[i].params = named.ok() ? ParamsOf(std::move(item), id) : std::move(named);
      if (!items_[i].params.ok()) continue;
      AnswerAtOnce(*items_[i].params);
      items_[i].params->on_id = [&id](const std::string& in_use) { id.id = in_use; };
    }
    return absl::OkStatus();
  }

  std::shared_ptr<Batch> batch_;  // constant after OnMessage; null if the call was refused
  std::vector<Item> items_;       // egress thread only
};

template <typename T>
void Add(const ServiceParts& parts, Rpc rpc, CallTable& calls) {
  calls.Add(rpc, [&parts](Transport& transport) -> Call* { return new T(parts, transport); });
}

}  // namespace

void AddGenerateCalls(const ServiceParts& parts, CallTable& calls) {
  Add<OneAnswerCall<v1::GenerateRequest>>(parts, Rpc::kGenerate, calls);
  Add<OneAnswerCall<v1::ScoreRequest>>(parts, Rpc::kScore, calls);
  Add<StreamCall>(parts, Rpc::kGenerateStream, calls);
  Add<BatchCall>(parts, Rpc::kGenerateBatch, calls);
}

}  // namespace quire::server
