// SessionService. AppendToSession is answered by a frontend thread, or by the egress thread if it
// computes. Converse has a file of its own. Calls with the content of a session are answered by a
// frontend thread too, all others at once.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "quire/v1/session_service.pb.h"
#include "server/call/egress.h"
#include "server/call/held_bytes.h"
#include "server/identity/grant.h"
#include "server/service/converse_call.h"
#include "server/service/page_tokens.h"
#include "server/service/proto_conversion.h"
#include "server/service/services.h"
#include "server/service/session_conversion.h"
#include "server/service/unary_call.h"

namespace quire::server {
namespace {

class SessionCall : public FrontendCall {
 public:
  using FrontendCall::FrontendCall;

  const std::string& caller_name() const { return caller().name; }

 protected:
  engine::Sessions& sessions() { return parts().engine.sessions(); }
};

// `F` gets the call and a Request, and returns the response.
template <typename Request, typename F>
class AnsweredCall final : public SessionCall {
 public:
  AnsweredCall(const ServiceParts& parts, Rpc rpc, Transport& transport, F answer)
      : SessionCall(parts, rpc, transport), answer_(std::move(answer)) {}

  void OnMessage(std::string_view bytes) override {
    Request request;
    const absl::Status status = Read(bytes, request);
    if (!status.ok()) return Answer(status);
    Answer(answer_(*this, request));
  }

 private:
  const F answer_;
};

// `F` gets the caller and a Request, and returns a session. A request with a content, or for one,
// is answered by a frontend thread.
template <typename Request, typename F>
class AnsweredWithSession final : public SessionCall {
 public:
  AnsweredWithSession(const ServiceParts& parts, Rpc rpc, Transport& transport, HeldBytes& held,
                      F answer)
      : SessionCall(parts, rpc, transport), held_(held), answer_(std::move(answer)) {}

  void OnMessage(std::string_view bytes) override {
    if (const absl::Status status = Begin(bytes); !status.ok()) Answer(status);
  }

 private:
  absl::Status Begin(std::string_view bytes) {
    RETURN_IF_ERROR(Read(bytes, request_));
    if (!request_.has_content()) {
      ASSIGN_OR_RETURN(const engine::SessionInfo info, answer_(context_caller(), request_));
      const v1::Session session = ToProto(info);
      Answer(absl::OkStatus(), &session);
      return absl::OkStatus();
    }
    const auto num_bytes = static_cast<int64_t>(bytes.size());
    RETURN_IF_ERROR(Hold(held_, kCallBytes + 2 * num_bytes));
    return RunOnFrontend(num_bytes, [this] {
      v1::Session session;
      const absl::Status status = RunUnlessCancelled([&]() -> absl::Status {
        ASSIGN_OR_RETURN(const engine::SessionInfo info, answer_(context_caller(), request_));
        session = ToProto(info);
        return HoldMore(static_cast<int64_t>(session.ByteSizeLong()));
      });
      Answer(status, &session);
    });
  }

  HeldBytes& held_;  // not owned
  const F answer_;
  Request request_;
};

class AppendCall final : public SessionCall, public UnaryWriter {
 public:
  AppendCall(const ServiceParts& parts, Transport& transport)
      : SessionCall(parts, Rpc::kAppendToSession, transport) {}

  void OnMessage(std::string_view bytes) override {
    if (const absl::Status status = Begin(bytes); !status.ok()) Answer(status);
  }
  void OnCancel() override {
    SessionCall::OnCancel();
    if (submitted_ != nullptr) submitted_->Cancel();
  }

  // The end of the request that computes.
  void Close(std::vector<engine::TokenDelta>, const absl::Status& status,
             const engine::RequestSummary& summary) override {
    if (!status.ok()) return Answer(status);
    auto session = sessions().Get(context_caller(), append_.name);
    if (!session.ok()) return Answer(session.status());
    v1::AppendToSessionResponse response = ToProto(engine::SessionAppended{
        .session = *std::move(session), .kept_tokens = summary.usage.kept_tokens});
    *response.mutable_usage() = ToProto(summary.usage);
    Answer(absl::OkStatus(), &response);
  }

 private:
  absl::Status Begin(std::string_view bytes) {
    v1::AppendToSessionRequest request;
    RETURN_IF_ERROR(Read(bytes, request));
    const bool computes = request.compute();
    ASSIGN_OR_RETURN(append_, FromProto(std::move(request), context_caller()));
    if (computes) return Compute();
    return RunOnFrontend(static_cast<int64_t>(bytes.size()), [this] {
      v1::AppendToSessionResponse response;
      const absl::Status status = RunUnlessCancelled([&]() -> absl::Status {
        ASSIGN_OR_RETURN(const auto appended, sessions().Append(append_));
        response = ToProto(appended);
        return absl::OkStatus();
      });
      Answer(status, &response);
    });
  }

  absl::Status Compute() {
    ASSIGN_OR_RETURN(const auto earlier, sessions().FindAppend(append_));
    if (earlier.has_value()) {
      const v1::AppendToSessionResponse response = ToProto(*earlier);
      Answer(absl::OkStatus(), &response);
      return absl::OkStatus();
    }
    engine::GenerateParams params;
    params.request_id = id().id;
    params.id_is_name = true;
    params.deadline = transport().Deadline();
    params.answers_at_once = true;
    params.prompt = append_.content;
    params.session = {.name = append_.name,
                      .etag = append_.etag,
                      .computes_only = true,
                      .append_id = append_.request_id};
    RETURN_IF_ERROR(Grant(caller(), params));
    auto sink = std::make_shared<UnarySink>(/*token_ids=*/false, parts().call.egress, *this);
    ASSIGN_OR_RETURN(submitted_, parts().engine.Submit(std::move(params), std::move(sink)));
    return absl::OkStatus();
  }

  engine::SessionAppend append_;                         // constant after OnMessage, as is the next
  std::shared_ptr<engine::SubmittedRequest> submitted_;  // null unless it computes
};

template <typename Request, typename F>
void Add(const ServiceParts& parts, Rpc rpc, CallTable& calls, F answer) {
  calls.Add(rpc, [&parts, rpc, answer](Transport& transport) -> Call* {
    return new AnsweredCall<Request, F>(parts, rpc, transport, answer);
  });
}

template <typename Request, typename F>
void AddWithSession(const ServiceParts& parts, Rpc rpc, const std::shared_ptr<HeldBytes>& held,
                    CallTable& calls, F answer) {
  calls.Add(rpc, [&parts, rpc, held, answer](Transport& transport) -> Call* {
    return new AnsweredWithSession<Request, F>(parts, rpc, transport, *held, answer);
  });
}

absl::StatusOr<v1::ListSessionsResponse> PageOf(engine::Sessions& sessions,
                                                const PageTokens& page_tokens,
                                                const SessionCall& call,
                                                const v1::ListSessionsRequest& in) {
  ASSIGN_OR_RETURN(
      const PageRequest wanted,
      ReadPageRequest(page_tokens, "ListSessions", call.caller_name(), in, base::SteadyNow()));
  ASSIGN_OR_RETURN(const engine::Sessions::Page page,
                   sessions.List(call.context_caller(), wanted.tenant, wanted.after, wanted.size));
  v1::ListSessionsResponse response;
  for (const engine::SessionInfo& info : page.sessions) *response.add_sessions() = ToProto(info);
  if (page.next != 0) {
    response.set_next_page_token(page_tokens.Make(wanted.query, page.next, base::SteadyNow()));
  }
  return response;
}

}  // namespace

void AddSessionCalls(const ServiceParts& parts, CallTable& calls) {
  engine::Sessions& sessions = parts.engine.sessions();
  const auto held = std::make_shared<HeldBytes>(FrontendCall::kMostHeldBytes);
  AddWithSession<v1::CreateSessionRequest>(
      parts, Rpc::kCreateSession, held, calls,
      [&sessions](const engine::ContextCaller& caller,
                  v1::CreateSessionRequest& in) -> absl::StatusOr<engine::SessionInfo> {
        ASSIGN_OR_RETURN(const engine::SessionParams params, FromProto(std::move(in), caller));
        return sessions.Create(params);
      });
  AddWithSession<v1::GetSessionRequest>(
      parts, Rpc::kGetSession, held, calls,
      [&sessions](const engine::ContextCaller& caller, const v1::GetSessionRequest& in) {
        return in.content() ? sessions.GetWithContent(caller, in.name())
                            : sessions.Get(caller, in.name());
      });
  Add<v1::ListSessionsRequest>(parts, Rpc::kListSessions, calls,
                               [&sessions, page_tokens = std::make_shared<const PageTokens>()](
                                   const SessionCall& call, const v1::ListSessionsRequest& in) {
                                 return PageOf(sessions, *page_tokens, call, in);
                               });
  calls.Add(Rpc::kAppendToSession,
            [&parts](Transport& transport) -> Call* { return new AppendCall(parts, transport); });
  Add<v1::ForkSessionRequest>(
      parts, Rpc::kForkSession, calls,
      [&sessions](const SessionCall& call,
                  const v1::ForkSessionRequest& in) -> absl::StatusOr<v1::ForkSessionResponse> {
        ASSIGN_OR_RETURN(const auto children, sessions.Fork(FromProto(in, call.context_caller())));
        v1::ForkSessionResponse out;
        for (const engine::SessionInfo& child : children) *out.add_sessions() = ToProto(child);
        return out;
      });
  Add<v1::CloseSessionRequest>(
      parts, Rpc::kCloseSession, calls,
      [&sessions](const SessionCall& call,
                  const v1::CloseSessionRequest& in) -> absl::StatusOr<v1::CloseSessionResponse> {
        RETURN_IF_ERROR(sessions.Close(call.context_caller(), in.name()));
        return v1::CloseSessionResponse();
      });
  calls.Add(Rpc::kConverse,
            [&parts](Transport& transport) -> Call* { return NewConverseCall(parts, transport); });
}

}  // namespace quire::server
