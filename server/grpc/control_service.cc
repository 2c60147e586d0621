// ControlService: queries about the server, and the commands Abort and Drain. Every handler answers
// before it returns.

#include <memory>
#include <optional>
#include <string>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "base/status_macros.h"
#include "quire/v1/control_service.grpc.pb.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/rpc_context.h"

namespace quire::server {
namespace {

template <typename Base>
using RawQueries = v1::ControlService::WithRawCallbackMethod_ListModels<
    v1::ControlService::WithRawCallbackMethod_GetModelInfo<
        v1::ControlService::WithRawCallbackMethod_GetServerInfo<
            v1::ControlService::WithRawCallbackMethod_GetStats<Base>>>>;
using RawControlService = RawQueries<v1::ControlService::WithRawCallbackMethod_Abort<
    v1::ControlService::WithRawCallbackMethod_Drain<v1::ControlService::Service>>>;

class ControlService final : public RawControlService {
 public:
  explicit ControlService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return Answer<v1::ListModelsRequest, v1::ListModelsResponse>(
        *context, Rpc::kListModels, *request, *response,
        [this](const Principal&, const v1::ListModelsRequest&, v1::ListModelsResponse& out) {
          *out.add_models() = ToProto(parts_.engine.model_info());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return Answer<v1::GetModelInfoRequest, v1::GetModelInfoResponse>(
        *context, Rpc::kGetModelInfo, *request, *response,
        [this](const Principal&, const v1::GetModelInfoRequest& in,
               v1::GetModelInfoResponse& out) -> absl::Status {
          RETURN_IF_ERROR(CheckModel(parts_.engine, in.model()));
          *out.mutable_model() = ToProto(parts_.engine.model_info());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return Answer<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
        *context, Rpc::kGetServerInfo, *request, *response,
        [this](const Principal&, const v1::GetServerInfoRequest&, v1::GetServerInfoResponse& out) {
          out = ToProto(parts_.engine.server_info());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return Answer<v1::GetStatsRequest, v1::GetStatsResponse>(
        *context, Rpc::kGetStats, *request, *response,
        [this](const Principal& caller, const v1::GetStatsRequest&,
               v1::GetStatsResponse& out) -> absl::Status {
          RETURN_IF_ERROR(CheckOperator(parts_.trusts_place, caller));
          out = ToProto(parts_.engine.stats());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    return Answer<v1::AbortRequest, v1::AbortResponse>(
        *context, Rpc::kAbort, *request, *response,
        [this](const Principal& caller, const v1::AbortRequest& in, v1::AbortResponse&) {
          if (in.request_id().empty()) {
            return absl::InvalidArgumentError("request_id: want the id of a running request");
          }
          // Tries the caller's own request first. An operator may also abort other callers'
          // requests.
          const absl::Status own = parts_.engine.Abort(in.request_id(), caller.name);
          if (own.ok() || !CheckOperator(parts_.trusts_place, caller).ok()) return own;
          return parts_.engine.Abort(in.request_id(), std::nullopt);
        });
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    return Answer<v1::DrainRequest, v1::DrainResponse>(
        *context, Rpc::kDrain, *request, *response,
        [this](const Principal& caller, const v1::DrainRequest&,
               v1::DrainResponse& out) -> absl::Status {
          RETURN_IF_ERROR(CheckOperator(parts_.trusts_place, caller));
          parts_.drain();
          const v1::QueueStats queue = ToProto(parts_.engine.stats()).queue();
          out.set_num_running(queue.num_running());
          out.set_num_waiting(queue.num_waiting());
          return absl::OkStatus();
        });
  }

 private:
  // `answer` gets the caller and a Request, fills a Response, and returns a status.
  template <typename Request, typename Response, typename F>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext& context, Rpc rpc,
                                   const grpc::ByteBuffer& in, grpc::ByteBuffer& out, F answer) {
    std::string request_id;
    PrincipalPtr caller;
    const auto answered = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(request_id, TakeRequestId(context, ""));
      ASSIGN_OR_RETURN(caller, AuthenticateCaller(context, parts_));
      Request request;
      RETURN_IF_ERROR(ParseMessage(in, request));
      Response response;
      RETURN_IF_ERROR(answer(*caller, request, response));
      SerializeMessage(response, out);
      return absl::OkStatus();
    };
    const absl::Status status = answered();
    if (HasMessage(in)) {
      NoteEnd(
          parts_, context,
          {.rpc = rpc, .caller = caller.get(), .request_id = request_id, .code = status.code()});
    }
    grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeControlService(const ServiceParts& parts) {
  return std::make_unique<ControlService>(parts);
}

}  // namespace quire::server
