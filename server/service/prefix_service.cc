// PrefixService: named prefixes. Calls that wait for a prefix to be computed are answered by the
// egress thread; all others are answered at once.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "quire/v1/prefix_service.pb.h"
#include "server/service/page_tokens.h"
#include "server/service/prefix_conversion.h"
#include "server/service/proto_conversion.h"
#include "server/service/services.h"
#include "server/service/unary_call.h"

namespace quire::server {
namespace {

// A page ends before its message is larger than this, unless it has only one prefix. gRPC's clients
// take messages of up to 4 MiB by default.
constexpr size_t kMaxPageBytes = 1 << 20;

// One call. Its answer and its cancellation may come at the same time on two threads; the first of
// them ends the call.
class PrefixCall : public UnaryCall {
 public:
  using UnaryCall::UnaryCall;

  void OnCancel() override {
    if (on_lost_ != nullptr) on_lost_();
    Close(CancelStatus());
  }

  const std::string& caller_name() const { return caller().name; }

  // Ends the call, unless it has ended.
  void Close(const absl::Status& status, const google::protobuf::Message* answer = nullptr) {
    if (open_->exchange(nullptr) != nullptr) Answer(status, answer);
  }
  void CloseWith(const google::protobuf::Message& answer) { Close(absl::OkStatus(), &answer); }

  // Returns a function that answers the call with a prefix, or with the reason why there is none.
  engine::NamedPrefixes::Done WhenDone() {
    return [open = open_, &egress = parts().call.egress](absl::StatusOr<engine::PrefixInfo> info) {
      egress.Post([open, info = std::move(info)] {
        PrefixCall* call = open->exchange(nullptr);
        if (call == nullptr) return;  // was cancelled
        if (!info.ok()) return call->Answer(info.status());
        if (info->state == engine::PrefixState::kFailed) return call->Answer(info->error);
        const v1::Prefix prefix = ToProto(*info);
        call->Answer(absl::OkStatus(), &prefix);
      });
    };
  }

  // Sets what is done if the client does not get its answer. Only OnMessage may call this.
  void SetOnLost(std::function<void()> on_lost) { on_lost_ = std::move(on_lost); }

 private:
  std::function<void()> on_lost_;  // constant after OnMessage
  // This call until it has ended, then null. Who sets it to null ends the call.
  const std::shared_ptr<std::atomic<PrefixCall*>> open_ =
      std::make_shared<std::atomic<PrefixCall*>>(this);
};

// `Handle` gets the call and a Request. It answers the call, now or later, or returns an error,
// which ends it.
template <typename Request, typename Handle>
class HandledCall final : public PrefixCall {
 public:
  HandledCall(const ServiceParts& parts, Rpc rpc, Transport& transport, Handle handle)
      : PrefixCall(parts, rpc, transport), handle_(std::move(handle)) {}

  void OnMessage(std::string_view bytes) override {
    Request request;
    absl::Status status = Read(bytes, request);
    if (status.ok()) status = handle_(*this, request);
    if (!status.ok()) Close(status);
  }

 private:
  const Handle handle_;
};

template <typename Request, typename Handle>
void Add(const ServiceParts& parts, Rpc rpc, CallTable& calls, Handle handle) {
  calls.Add(rpc, [&parts, rpc, handle](Transport& transport) -> Call* {
    return new HandledCall<Request, Handle>(parts, rpc, transport, handle);
  });
}

absl::StatusOr<v1::ListPrefixesResponse> PageOf(const ServiceParts& parts,
                                                const PageTokens& page_tokens,
                                                const PrefixCall& call,
                                                const v1::ListPrefixesRequest& in) {
  ASSIGN_OR_RETURN(PageRequest wanted, ReadPageRequest(page_tokens, "ListPrefixes",
                                                       call.caller_name(), in, base::SteadyNow()));
  while (true) {
    ASSIGN_OR_RETURN(const engine::NamedPrefixes::Page page,
                     parts.engine.prefixes().List(call.context_caller(), wanted.tenant,
                                                  wanted.after, wanted.size));
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
        response.set_next_page_token(page_tokens.Make(wanted.query, page.next, base::SteadyNow()));
      }
      return response;
    }
    wanted.size = response.prefixes_size();  // asks for those that fit, to learn the next cursor
  }
}

PrefixTtlLimits TtlLimits(const ServiceParts& parts) {
  return {.max_ttl = parts.max_prefix_ttl, .now = absl::Now()};
}

absl::Status Create(const ServiceParts& parts, PrefixCall& call, v1::CreatePrefixRequest& in) {
  engine::NamedPrefixes& prefixes = parts.engine.prefixes();
  const bool wait = in.has_wait() ? in.wait() : true;
  ASSIGN_OR_RETURN(engine::PrefixParams params, FromProto(std::move(in), TtlLimits(parts)));
  params.caller = call.context_caller();
  const bool may_retry = !params.request_id.empty();
  ASSIGN_OR_RETURN(const std::string name,
                   prefixes.Create(
                       std::move(params), wait ? call.WhenDone() : [](const auto&) {}));
  if (!may_retry) {
    call.SetOnLost([&prefixes, caller = call.context_caller(), name] {
      // The prefix may have expired, or may have been deleted by others.
      prefixes.Delete(caller, name, /*etag=*/"").IgnoreError();
    });
  }
  if (wait) return absl::OkStatus();
  ASSIGN_OR_RETURN(const engine::PrefixInfo info, prefixes.Get(call.context_caller(), name));
  call.CloseWith(ToProto(info));
  return absl::OkStatus();
}

}  // namespace

void AddPrefixCalls(const ServiceParts& parts, CallTable& calls) {
  engine::NamedPrefixes& prefixes = parts.engine.prefixes();
  Add<v1::CreatePrefixRequest>(
      parts, Rpc::kCreatePrefix, calls,
      [&parts](PrefixCall& call, v1::CreatePrefixRequest& in) { return Create(parts, call, in); });
  Add<v1::GetPrefixRequest>(
      parts, Rpc::kGetPrefix, calls,
      [&prefixes](PrefixCall& call, const v1::GetPrefixRequest& in) -> absl::Status {
        RETURN_IF_ERROR(CheckPrefixName("name", in.name()));
        ASSIGN_OR_RETURN(const engine::PrefixInfo info,
                         prefixes.Get(call.context_caller(), in.name()));
        call.CloseWith(ToProto(info));
        return absl::OkStatus();
      });
  Add<v1::ListPrefixesRequest>(
      parts, Rpc::kListPrefixes, calls,
      [&parts, page_tokens = std::make_shared<const PageTokens>()](
          PrefixCall& call, const v1::ListPrefixesRequest& in) -> absl::Status {
        ASSIGN_OR_RETURN(const v1::ListPrefixesResponse page,
                         PageOf(parts, *page_tokens, call, in));
        call.CloseWith(page);
        return absl::OkStatus();
      });
  Add<v1::UpdatePrefixRequest>(
      parts, Rpc::kUpdatePrefix, calls,
      [&parts, &prefixes](PrefixCall& call, const v1::UpdatePrefixRequest& in) -> absl::Status {
        ASSIGN_OR_RETURN(const engine::PrefixUpdate update, FromProto(in, TtlLimits(parts)));
        ASSIGN_OR_RETURN(const engine::PrefixInfo info,
                         prefixes.Update(call.context_caller(), update));
        call.CloseWith(ToProto(info));
        return absl::OkStatus();
      });
  Add<v1::DeletePrefixRequest>(
      parts, Rpc::kDeletePrefix, calls,
      [&prefixes](PrefixCall& call, const v1::DeletePrefixRequest& in) -> absl::Status {
        RETURN_IF_ERROR(CheckPrefixName("name", in.name()));
        const absl::Status deleted = prefixes.Delete(call.context_caller(), in.name(), in.etag());
        if (!absl::IsNotFound(deleted) || !in.allow_missing()) RETURN_IF_ERROR(deleted);
        call.CloseWith(v1::DeletePrefixResponse());
        return absl::OkStatus();
      });
  Add<v1::WarmPrefixRequest>(
      parts, Rpc::kWarmPrefix, calls,
      [&prefixes](PrefixCall& call, const v1::WarmPrefixRequest& in) -> absl::Status {
        RETURN_IF_ERROR(CheckPrefixName("name", in.name()));
        prefixes.Warm(call.context_caller(), in.name(), call.WhenDone());
        return absl::OkStatus();
      });
}

}  // namespace quire::server
