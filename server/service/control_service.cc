// ControlService: queries about the server, and the commands Abort, Drain and FlushPrefixCache. All
// calls are answered at once, except FlushPrefixCache and GetCacheMap.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "quire/v1/control_service.pb.h"
#include "server/identity/grant.h"
#include "server/service/cache_map_conversion.h"
#include "server/service/proto_conversion.h"
#include "server/service/services.h"
#include "server/service/unary_call.h"

namespace quire::server {
namespace {

// Returns an error unless `caller` may do here what only operators may.
absl::Status CheckCaller(const ServiceParts& parts, const Principal& caller) {
  if (parts.serves_operators) return CheckOperator(parts.trusts_place, caller);
  return absl::UnimplementedError(
      "not served at this address, where only ListModels, GetModelInfo, GetServerInfo and Abort "
      "of ControlService are: operators ask at the server's --control_listen");
}

// The step thread runs the command, and the egress thread sends the answer.
class FlushCall final : public UnaryCall {
 public:
  FlushCall(const ServiceParts& parts, Transport& transport)
      : UnaryCall(parts, Rpc::kFlushPrefixCache, transport) {}

  void OnMessage(std::string_view bytes) override {
    v1::FlushPrefixCacheRequest request;
    absl::Status status = Read(bytes, request);
    if (status.ok()) status = CheckCaller(parts(), caller());
    if (!status.ok()) return Answer(status);
    parts().engine.FlushPrefixCache([this](absl::StatusOr<int64_t> num_freed) {
      parts().call.egress.Post([this, num_freed = std::move(num_freed)] {
        v1::FlushPrefixCacheResponse response;
        response.set_num_freed_blocks(static_cast<uint32_t>(num_freed.value_or(0)));
        Answer(num_freed.status(), &response);
      });
    });
  }
};

// The step thread makes the picture, and the egress thread sends it.
class CacheMapCall final : public UnaryCall {
 public:
  CacheMapCall(const ServiceParts& parts, Transport& transport)
      : UnaryCall(parts, Rpc::kGetCacheMap, transport) {}

  void OnMessage(std::string_view bytes) override {
    if (const absl::Status status = Begin(bytes); !status.ok()) Answer(status);
  }

 private:
  absl::Status Begin(std::string_view bytes) {
    v1::GetCacheMapRequest request;
    RETURN_IF_ERROR(Read(bytes, request));
    RETURN_IF_ERROR(CheckCaller(parts(), caller()));
    ASSIGN_OR_RETURN(const CacheMapLimits limits, FromProto(request));
    using Map = absl::StatusOr<std::shared_ptr<const engine::CacheMap>>;
    parts().engine.GetCacheMap([this, limits](Map map) {
      parts().call.egress.Post([this, limits, map = std::move(map)] {
        if (!map.ok()) return Answer(map.status());
        engine::Engine& engine = parts().engine;
        const auto response = ToProto(**map, engine, AllPrefixes(engine), limits);
        Answer(absl::OkStatus(), &response);
      });
    });
    return absl::OkStatus();
  }
};

}  // namespace

void AddControlCalls(const ServiceParts& parts, CallTable& calls) {
  AddAnsweredCall<v1::ListModelsRequest, v1::ListModelsResponse>(
      parts, Rpc::kListModels, calls,
      [&parts](const Principal&, const v1::ListModelsRequest&, v1::ListModelsResponse& out) {
        *out.add_models() = ToProto(parts.engine.model_info());
        return absl::OkStatus();
      });
  AddAnsweredCall<v1::GetModelInfoRequest, v1::GetModelInfoResponse>(
      parts, Rpc::kGetModelInfo, calls,
      [&parts](const Principal&, const v1::GetModelInfoRequest& in,
               v1::GetModelInfoResponse& out) -> absl::Status {
        RETURN_IF_ERROR(CheckModel(parts.engine, in.model()));
        *out.mutable_model() = ToProto(parts.engine.model_info());
        return absl::OkStatus();
      });
  AddAnsweredCall<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
      parts, Rpc::kGetServerInfo, calls,
      [&parts](const Principal&, const v1::GetServerInfoRequest&, v1::GetServerInfoResponse& out) {
        out = ToProto(parts.engine.server_info());
        return absl::OkStatus();
      });
  AddAnsweredCall<v1::GetStatsRequest, v1::GetStatsResponse>(
      parts, Rpc::kGetStats, calls,
      [&parts](const Principal& caller, const v1::GetStatsRequest&,
               v1::GetStatsResponse& out) -> absl::Status {
        RETURN_IF_ERROR(CheckCaller(parts, caller));
        out = ToProto(parts.engine.stats());
        return absl::OkStatus();
      });
  AddAnsweredCall<v1::AbortRequest, v1::AbortResponse>(
      parts, Rpc::kAbort, calls,
      [&parts](const Principal& caller, const v1::AbortRequest& in, v1::AbortResponse&) {
        if (in.request_id().empty()) {
          return absl::InvalidArgumentError("request_id: want the id of a running request");
        }
        // Tries the caller's own request first. An operator may also abort other callers' requests.
        const absl::Status own = parts.engine.Abort(in.request_id(), caller.name);
        if (own.ok() || !CheckCaller(parts, caller).ok()) return own;
        return parts.engine.Abort(in.request_id(), std::nullopt);
      });
  AddAnsweredCall<v1::DrainRequest, v1::DrainResponse>(
      parts, Rpc::kDrain, calls,
      [&parts](const Principal& caller, const v1::DrainRequest&,
               v1::DrainResponse& out) -> absl::Status {
        RETURN_IF_ERROR(CheckCaller(parts, caller));
        parts.drain();
        const v1::QueueStats queue = ToProto(parts.engine.stats()).queue();
        out.set_num_running(queue.num_running());
        out.set_num_waiting(queue.num_waiting());
        return absl::OkStatus();
      });
  calls.Add(Rpc::kFlushPrefixCache,
            [&parts](Transport& transport) -> Call* { return new FlushCall(parts, transport); });
  calls.Add(Rpc::kGetCacheMap,
            [&parts](Transport& transport) -> Call* { return new CacheMapCall(parts, transport); });
}

}  // namespace quire::server
