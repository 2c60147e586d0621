// ControlService: what operators ask and order. Everything answers at once.

#include <memory>
#include <string>

#include <grpcpp/support/server_callback.h>

#include "base/logging.h"
#include "base/status_macros.h"
#include "quire/v1/control_service.grpc.pb.h"
#include "server/proto_conversion.h"
#include "server/rpc_context.h"

namespace quire::server {
namespace {

class ControlService final : public v1::ControlService::CallbackService {
 public:
  explicit ControlService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest*,
                                       v1::ListModelsResponse* response) override {
    return Answer(*context, Rpc::kListModels, [&](const std::string&) {
      *response->add_models() = ToProto(parts_.engine.model_info());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override {
    return Answer(*context, Rpc::kGetModelInfo, [&](const std::string&) -> absl::Status {
      RETURN_IF_ERROR(CheckModel(parts_.engine, request->model()));
      *response->mutable_model() = ToProto(parts_.engine.model_info());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*,
                                          v1::GetServerInfoResponse* response) override {
    return Answer(*context, Rpc::kGetServerInfo, [&](const std::string&) {
      *response = ToProto(parts_.engine.server_info());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const v1::GetStatsRequest*,
                                     v1::GetStatsResponse* response) override {
    return Answer(*context, Rpc::kGetStats, [&](const std::string&) {
      *response = ToProto(parts_.engine.stats());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request, v1::AbortResponse*) override {
    return Answer(*context, Rpc::kAbort, [&](const std::string& caller) {
      if (request->request_id().empty()) {
        return absl::InvalidArgumentError("request_id: want the id of a running request");
      }
      return parts_.engine.Abort(request->request_id(), caller);
    });
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest*,
                                  v1::DrainResponse* response) override {
    return Answer(*context, Rpc::kDrain, [&](const std::string& caller) {
      base::Log(base::LogLevel::kInfo, "rpc", "Drain", {{"caller", caller}});
      parts_.drain();
      const v1::QueueStats queue = ToProto(parts_.engine.stats()).queue();
      response->set_num_running(queue.num_running());
      response->set_num_waiting(queue.num_waiting());
      return absl::OkStatus();
    });
  }

 private:
  // `answer` gets who calls, and gives a status.
  template <typename F>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext& context, Rpc rpc, F answer) {
    const auto answered = [&]() -> absl::Status {
      RETURN_IF_ERROR(TakeRequestId(context, "").status());
      ASSIGN_OR_RETURN(const std::string caller, AuthenticateCaller(context, parts_.tokens));
      return answer(caller);
    };
    const absl::Status status = answered();
    parts_.counters.Count(rpc, status.code());
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
