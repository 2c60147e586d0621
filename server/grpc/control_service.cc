// ControlService: queries about the server, and the commands Abort, Drain and FlushPrefixCache. All
// handlers answer before they return, except those of FlushPrefixCache and GetCacheMap.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "quire/v1/control_service.grpc.pb.h"
#include "server/grpc/cache_map_conversion.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/rpc_context.h"
#include "server/grpc/unary_reactor.h"

namespace quire::server {
namespace {

template <typename Base>
using RawQueries = v1::ControlService::WithRawCallbackMethod_ListModels<
    v1::ControlService::WithRawCallbackMethod_GetModelInfo<
        v1::ControlService::WithRawCallbackMethod_GetServerInfo<
            v1::ControlService::WithRawCallbackMethod_GetStats<
                v1::ControlService::WithRawCallbackMethod_GetCacheMap<Base>>>>>;
using RawControlService = RawQueries<
    v1::ControlService::WithRawCallbackMethod_Abort<v1::ControlService::WithRawCallbackMethod_Drain<
        v1::ControlService::WithRawCallbackMethod_FlushPrefixCache<v1::ControlService::Service>>>>;

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
          RETURN_IF_ERROR(CheckCaller(caller));
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
          if (own.ok() || !CheckCaller(caller).ok()) return own;
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
          RETURN_IF_ERROR(CheckCaller(caller));
          parts_.drain();
          const v1::QueueStats queue = ToProto(parts_.engine.stats()).queue();
          out.set_num_running(queue.num_running());
          out.set_num_waiting(queue.num_waiting());
          return absl::OkStatus();
        });
  }

  // The step thread runs the command, and the egress thread sends the answer.
  grpc::ServerUnaryReactor* FlushPrefixCache(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override {
    auto* const call = new UnaryReactor(parts_, *context, Rpc::kFlushPrefixCache, *request);
    v1::FlushPrefixCacheRequest message;
    const absl::Status status = ReadOperatorCall(*request, *call, message);
    if (!status.ok()) {
      call->End(status);
      return call;
    }
    parts_.engine.FlushPrefixCache([this, call, response](absl::StatusOr<int64_t> num_freed) {
      parts_.egress.Post([call, response, num_freed = std::move(num_freed)] {
        if (num_freed.ok()) {
          v1::FlushPrefixCacheResponse answer;
          answer.set_num_freed_blocks(static_cast<uint32_t>(*num_freed));
          SerializeMessage(answer, *response);
        }
        call->End(num_freed.status());
      });
    });
    return call;
  }

  // The step thread makes the picture, and the egress thread sends it.
  grpc::ServerUnaryReactor* GetCacheMap(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override {
    auto* const call = new UnaryReactor(parts_, *context, Rpc::kGetCacheMap, *request);
    v1::GetCacheMapRequest message;
    absl::Status status = ReadOperatorCall(*request, *call, message);
    const absl::StatusOr<CacheMapLimits> limits = FromProto(message);
    if (status.ok()) status = limits.status();
    if (!status.ok()) {
      call->End(status);
      return call;
    }
    using Map = absl::StatusOr<std::shared_ptr<const engine::CacheMap>>;
    parts_.engine.GetCacheMap([this, call, response, limits = *limits](Map map) {
      parts_.egress.Post([this, call, response, limits, map = std::move(map)] {
        if (map.ok()) {
          SerializeMessage(ToProto(**map, parts_.engine, AllPrefixes(parts_.engine), limits),
                           *response);
        }
        call->End(map.status());
      });
    });
    return call;
  }

 private:
  // Returns an error unless `caller` may do here what only operators may.
  absl::Status CheckCaller(const Principal& caller) const {
    if (parts_.serves_operators) return CheckOperator(parts_.trusts_place, caller);
    return absl::UnimplementedError(
        "not served at this address, where only ListModels, GetModelInfo, GetServerInfo and Abort "
        "of ControlService are: operators ask at the server's --control_listen");
  }

  // Reads the message of a call that only operators may make.
  absl::Status ReadOperatorCall(const grpc::ByteBuffer& in, UnaryReactor& call,
                                google::protobuf::Message& message) const {
    RETURN_IF_ERROR(call.Read(in, message));
    return CheckCaller(call.caller());
  }

  template <typename Request, typename Response, typename F>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext& context, Rpc rpc,
                                   const grpc::ByteBuffer& in, grpc::ByteBuffer& out, F answer) {
    return AnswerCall<Request, Response>(parts_, context, rpc, in, out, std::move(answer));
  }

  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeControlService(const ServiceParts& parts) {
  return std::make_unique<ControlService>(parts);
}

}  // namespace quire::server
