// PrefixService: named prefixes. Calls that wait for a prefix to be computed are answered by the
// egress thread; all others are answered before their handlers return.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "quire/v1/prefix_service.grpc.pb.h"
#include "server/grpc/page_tokens.h"
#include "server/grpc/prefix_conversion.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/unary_reactor.h"

namespace quire::server {
namespace {

// A page ends before its message is larger than this, unless it has only one prefix. gRPC's clients
// take messages of up to 4 MiB by default.
constexpr size_t kMaxPageBytes = 1 << 20;

// One call. Its answer and its cancellation may come at the same time on two threads; the first of
// them ends the call.
class PrefixCall final : public UnaryReactor {
 public:
  PrefixCall(const ServiceParts& parts, grpc::CallbackServerContext& context, Rpc rpc,
             const grpc::ByteBuffer& request, grpc::ByteBuffer& response)
      : UnaryReactor(parts, context, rpc, request), response_(response) {}

  // Finds the caller, and parses the message.
  absl::Status Read(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
    RETURN_IF_ERROR(UnaryReactor::Read(bytes, message));
    caller_ = {.tenant = UnaryReactor::caller().tenant,
               .is_operator = CheckOperator(parts().trusts_place, UnaryReactor::caller()).ok(),
               .limits = UnaryReactor::caller().limits};
    return absl::OkStatus();
  }
  const engine::PrefixCaller& caller() const { return caller_; }
  const std::string& caller_name() const { return UnaryReactor::caller().name; }

  void Answer(const google::protobuf::Message& message) {
    SerializeMessage(message, response_);
    Close(absl::OkStatus());
  }
  // Ends the call, unless it has ended.
  void Close(const absl::Status& status) {
    if (open_->exchange(nullptr) != nullptr) End(status);
  }

  // Returns a function that answers the call with a prefix, or with the reason why there is none.
  engine::NamedPrefixes::Done WhenDone() {
    return [open = open_, &egress = parts().egress](absl::StatusOr<engine::PrefixInfo> info) {
      egress.Post([open, info = std::move(info)] {
        PrefixCall* call = open->exchange(nullptr);
        if (call == nullptr) return;  // was cancelled
        absl::Status status = info.status();
        if (status.ok() && info->state == engine::PrefixState::kFailed) status = info->error;
        if (status.ok()) SerializeMessage(ToProto(*info), call->response_);
        call->End(status);
      });
    };
  }

  // Sets what is done if the client does not get its answer. Only the handler may call this.
  void SetOnLost(std::function<void()> on_lost) { on_lost_ = std::move(on_lost); }

  void OnCancel() override {
    if (on_lost_ != nullptr) on_lost_();
    Close(DeadlineOf(context()) <= absl::Now() ? engine::PastDeadlineStatus()
                                               : engine::CancelledStatus());
  }

 private:
  grpc::ByteBuffer& response_;     // owned by gRPC; lives until OnDone
  engine::PrefixCaller caller_;    // constant after Read
  std::function<void()> on_lost_;  // constant after the handler
  // This call until it has ended, then null. Who sets it to null ends the call.
  const std::shared_ptr<std::atomic<PrefixCall*>> open_ =
      std::make_shared<std::atomic<PrefixCall*>>(this);
};

template <typename Base>
using RawPrefixReads = v1::PrefixService::WithRawCallbackMethod_GetPrefix<
    v1::PrefixService::WithRawCallbackMethod_ListPrefixes<
        v1::PrefixService::WithRawCallbackMethod_WarmPrefix<Base>>>;
using RawPrefixService = RawPrefixReads<v1::PrefixService::WithRawCallbackMethod_CreatePrefix<
    v1::PrefixService::WithRawCallbackMethod_UpdatePrefix<
        v1::PrefixService::WithRawCallbackMethod_DeletePrefix<v1::PrefixService::Service>>>>;

class PrefixService final : public RawPrefixService {
 public:
  explicit PrefixService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* CreatePrefix(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return Start<v1::CreatePrefixRequest>(
        *context, Rpc::kCreatePrefix, *request, *response,
        [this](PrefixCall& call, v1::CreatePrefixRequest& in) -> absl::Status {
          const bool wait = in.has_wait() ? in.wait() : true;
          ASSIGN_OR_RETURN(engine::PrefixParams params, FromProto(std::move(in), TtlLimits()));
          params.caller = call.caller();
          const bool may_retry = !params.request_id.empty();
          ASSIGN_OR_RETURN(const std::string name,
                           prefixes().Create(
                               std::move(params), wait ? call.WhenDone() : [](const auto&) {}));
          if (!may_retry) {
            call.SetOnLost([this, caller = call.caller(), name] {
              // The prefix may have expired, or may have been deleted by others.
              prefixes().Delete(caller, name, /*etag=*/"").IgnoreError();
            });
          }
          if (wait) return absl::OkStatus();
          ASSIGN_OR_RETURN(const engine::PrefixInfo info, prefixes().Get(call.caller(), name));
          call.Answer(ToProto(info));
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* GetPrefix(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override {
    return Start<v1::GetPrefixRequest>(
        *context, Rpc::kGetPrefix, *request, *response,
        [this](PrefixCall& call, const v1::GetPrefixRequest& in) -> absl::Status {
          RETURN_IF_ERROR(CheckPrefixName("name", in.name()));
          ASSIGN_OR_RETURN(const engine::PrefixInfo info, prefixes().Get(call.caller(), in.name()));
          call.Answer(ToProto(info));
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* ListPrefixes(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return Start<v1::ListPrefixesRequest>(
        *context, Rpc::kListPrefixes, *request, *response,
        [this](PrefixCall& call, const v1::ListPrefixesRequest& in) -> absl::Status {
          ASSIGN_OR_RETURN(const v1::ListPrefixesResponse page, PageOf(call, in));
          call.Answer(page);
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* UpdatePrefix(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return Start<v1::UpdatePrefixRequest>(
        *context, Rpc::kUpdatePrefix, *request, *response,
        [this](PrefixCall& call, const v1::UpdatePrefixRequest& in) -> absl::Status {
          ASSIGN_OR_RETURN(const engine::PrefixUpdate update, FromProto(in, TtlLimits()));
          ASSIGN_OR_RETURN(const engine::PrefixInfo info, prefixes().Update(call.caller(), update));
          call.Answer(ToProto(info));
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* DeletePrefix(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return Start<v1::DeletePrefixRequest>(
        *context, Rpc::kDeletePrefix, *request, *response,
        [this](PrefixCall& call, const v1::DeletePrefixRequest& in) -> absl::Status {
          RETURN_IF_ERROR(CheckPrefixName("name", in.name()));
          const absl::Status deleted = prefixes().Delete(call.caller(), in.name(), in.etag());
          if (!absl::IsNotFound(deleted) || !in.allow_missing()) RETURN_IF_ERROR(deleted);
          call.Answer(v1::DeletePrefixResponse());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* WarmPrefix(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return Start<v1::WarmPrefixRequest>(
        *context, Rpc::kWarmPrefix, *request, *response,
        [this](PrefixCall& call, const v1::WarmPrefixRequest& in) -> absl::Status {
          RETURN_IF_ERROR(CheckPrefixName("name", in.name()));
          prefixes().Warm(call.caller(), in.name(), call.WhenDone());
          return absl::OkStatus();
        });
  }

 private:
  engine::NamedPrefixes& prefixes() const { return parts_.engine.prefixes(); }
  PrefixTtlLimits TtlLimits() const {
    return {.max_ttl = parts_.max_prefix_ttl, .now = absl::Now()};
  }

  // Parses the message and calls `handle`, which answers the call, now or later, or returns an
  // error, which ends it.
  template <typename Request, typename Handle>
  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext& context, Rpc rpc,
                                  const grpc::ByteBuffer& in, grpc::ByteBuffer& out,
                                  Handle handle) {
    auto* call = new PrefixCall(parts_, context, rpc, in, out);
    Request request;
    absl::Status status = call->Read(in, request);
    if (status.ok()) status = handle(*call, request);
    if (!status.ok()) call->Close(status);
    return call;
  }

  absl::StatusOr<v1::ListPrefixesResponse> PageOf(const PrefixCall& call,
                                                  const v1::ListPrefixesRequest& in) const {
    ASSIGN_OR_RETURN(
        PageRequest wanted,
        ReadPageRequest(page_tokens_, "ListPrefixes", call.caller_name(), in, base::SteadyNow()));
    while (true) {
      ASSIGN_OR_RETURN(const engine::NamedPrefixes::Page page,
                       prefixes().List(call.caller(), wanted.tenant, wanted.after, wanted.size));
      v1::ListPrefixesResponse response;
      size_t num_bytes = 0;
      for (const engine::PrefixInfo& info : page.prefixes) {
        v1::Prefix prefix = ToProto(info);
        num_bytes += prefix.ByteSizeLong();
        if (num_bytes > kMaxPageBytes && response.prefixes_size() > 0) break;
        *response.add_prefixes() = std::move(prefix);
      }
      if (response.prefixes_size() == std::ssize(page.prefixes)) {
        if (page.next != 0) {
          response.set_next_page_token(
              page_tokens_.Make(wanted.query, page.next, base::SteadyNow()));
        }
        return response;
      }
      wanted.size = response.prefixes_size();  // asks for those that fit, to learn the next cursor
    }
  }

  const ServiceParts parts_;
  const PageTokens page_tokens_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePrefixService(const ServiceParts& parts) {
  return std::make_unique<PrefixService>(parts);
}

}  // namespace quire::server
