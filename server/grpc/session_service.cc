// SessionService. AppendToSession is answered by a frontend thread, or by the egress thread if it
// computes. Converse has a file of its own. Calls with the content of a session are answered by a
// frontend thread too, all others before their handlers return.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "quire/v1/session_service.grpc.pb.h"
#include "server/call/egress.h"
#include "server/call/held_bytes.h"
#include "server/grpc/converse_call.h"
#include "server/grpc/page_tokens.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/session_conversion.h"
#include "server/grpc/unary_reactor.h"
#include "server/identity/grant.h"

namespace quire::server {
namespace {

class SessionCall : public FrontendReactor {
 public:
  SessionCall(const ServiceParts& parts, grpc::CallbackServerContext& context, Rpc rpc,
              const grpc::ByteBuffer& request, grpc::ByteBuffer& response)
      : FrontendReactor(parts, context, rpc, request), response_(response) {}

  // Finds the caller, and parses the message.
  absl::Status Read(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
    RETURN_IF_ERROR(UnaryReactor::Read(bytes, message));
    caller_ = ToSessionCaller(principal(), CheckOperator(parts().trusts_place, principal()).ok());
    return absl::OkStatus();
  }
  const engine::SessionCaller& caller() const { return caller_; }
  const Principal& principal() const { return UnaryReactor::caller(); }

  // Ends the call with a message or an error.
  template <typename Response>
  void Answer(const absl::StatusOr<Response>& response) {
    if (response.ok()) SerializeMessage(*response, response_);
    End(response.status());
  }
  // The same on a frontend thread: `answer` returns the session. Counts the `num_bytes` of the
  // request and those of the answer as held.
  absl::Status AnswerOnFrontend(HeldBytes& held, int64_t num_bytes,
                                std::function<absl::StatusOr<engine::SessionInfo>()> answer) {
    RETURN_IF_ERROR(Hold(held, kCallBytes + 2 * num_bytes));
    return RunOnFrontend(num_bytes, [this, answer = std::move(answer)] {
      End(RunUnlessCancelled([&]() -> absl::Status {
        ASSIGN_OR_RETURN(const engine::SessionInfo info, answer());
        const v1::Session session = ToProto(info);
        RETURN_IF_ERROR(HoldMore(static_cast<int64_t>(session.ByteSizeLong())));
        SerializeMessage(session, response_);
        return absl::OkStatus();
      }));
    });
  }

 private:
  grpc::ByteBuffer& response_;    // owned by gRPC; lives until OnDone
  engine::SessionCaller caller_;  // constant after Read
};

class AppendCall final : public SessionCall, public UnaryWriter {
 public:
  AppendCall(const ServiceParts& parts, grpc::CallbackServerContext& context,
             const grpc::ByteBuffer& request, grpc::ByteBuffer& response)
      : SessionCall(parts, context, Rpc::kAppendToSession, request, response) {
    if (const absl::Status status = Start(request); !status.ok()) End(status);
  }

  void OnCancel() override {
    SessionCall::OnCancel();
    if (submitted_ != nullptr) submitted_->Cancel();
  }

  // The end of the request that computes.
  void Close(std::vector<engine::TokenDelta>, const absl::Status& status,
             const engine::RequestSummary& summary) override {
    if (!status.ok()) return End(status);
    auto session = sessions().Get(caller(), append_.name);
    if (!session.ok()) return End(session.status());
    v1::AppendToSessionResponse response = ToProto(engine::SessionAppended{
        .session = *std::move(session), .kept_tokens = summary.usage.kept_tokens});
    *response.mutable_usage() = ToProto(summary.usage);
    Answer(absl::StatusOr<v1::AppendToSessionResponse>(std::move(response)));
  }

 private:
  engine::Sessions& sessions() { return parts().engine.sessions(); }

  absl::Status Start(const grpc::ByteBuffer& bytes) {
    v1::AppendToSessionRequest request;
    RETURN_IF_ERROR(Read(bytes, request));
    const bool computes = request.compute();
    ASSIGN_OR_RETURN(append_, FromProto(std::move(request), caller()));
    if (computes) return Compute();
    return RunOnFrontend(static_cast<int64_t>(bytes.Length()), [this] {
      v1::AppendToSessionResponse response;
      const absl::Status status = RunUnlessCancelled([&]() -> absl::Status {
        ASSIGN_OR_RETURN(const auto appended, sessions().Append(append_));
        response = ToProto(appended);
        return absl::OkStatus();
      });
      Answer(status.ok() ? absl::StatusOr<v1::AppendToSessionResponse>(std::move(response))
                         : absl::StatusOr<v1::AppendToSessionResponse>(status));
    });
  }

  absl::Status Compute() {
    ASSIGN_OR_RETURN(const auto earlier, sessions().FindAppend(append_));
    if (earlier.has_value()) {
      Answer(absl::StatusOr<v1::AppendToSessionResponse>(ToProto(*earlier)));
      return absl::OkStatus();
    }
    engine::GenerateParams params;
    params.request_id = request_id();
    params.id_is_name = true;
    params.deadline = DeadlineOf(context());
    params.answers_at_once = true;
    params.prompt = append_.content;
    params.session = {.name = append_.name,
                      .etag = append_.etag,
                      .computes_only = true,
                      .append_id = append_.request_id};
    RETURN_IF_ERROR(Grant(principal(), params));
    auto sink = std::make_shared<UnarySink>(/*token_ids=*/false, parts().egress, *this);
    ASSIGN_OR_RETURN(submitted_, parts().engine.Submit(std::move(params), std::move(sink)));
    return absl::OkStatus();
  }

  engine::SessionAppend append_;                         // constant after Start, as is the next
  std::shared_ptr<engine::SubmittedRequest> submitted_;  // null unless it computes
};

template <typename Base>
using RawSessionReads = v1::SessionService::WithRawCallbackMethod_GetSession<
    v1::SessionService::WithRawCallbackMethod_ListSessions<
        v1::SessionService::WithRawCallbackMethod_Converse<Base>>>;
using RawSessionService = RawSessionReads<v1::SessionService::WithRawCallbackMethod_CreateSession<
    v1::SessionService::WithRawCallbackMethod_AppendToSession<
        v1::SessionService::WithRawCallbackMethod_ForkSession<
            v1::SessionService::WithRawCallbackMethod_CloseSession<v1::SessionService::Service>>>>>;

class SessionService final : public RawSessionService {
 public:
  explicit SessionService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return AnswerSession<v1::CreateSessionRequest>(
        *context, Rpc::kCreateSession, *request, *response,
        [this](const engine::SessionCaller& caller,
               v1::CreateSessionRequest& in) -> absl::StatusOr<engine::SessionInfo> {
          ASSIGN_OR_RETURN(const engine::SessionParams params, FromProto(std::move(in), caller));
          return sessions().Create(params);
        });
  }

  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return AnswerSession<v1::GetSessionRequest>(
        *context, Rpc::kGetSession, *request, *response,
        [this](const engine::SessionCaller& caller, const v1::GetSessionRequest& in) {
          return in.content() ? sessions().GetWithContent(caller, in.name())
                              : sessions().Get(caller, in.name());
        });
  }

  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return Answer<v1::ListSessionsRequest>(
        *context, Rpc::kListSessions, *request, *response,
        [this](const SessionCall& call, const v1::ListSessionsRequest& in) {
          return PageOf(call, in);
        });
  }

  grpc::ServerUnaryReactor* AppendToSession(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override {
    return new AppendCall(parts_, *context, *request, *response);
  }

  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override {
    return Answer<v1::ForkSessionRequest>(
        *context, Rpc::kForkSession, *request, *response,
        [this](const SessionCall& call,
               const v1::ForkSessionRequest& in) -> absl::StatusOr<v1::ForkSessionResponse> {
          ASSIGN_OR_RETURN(const auto children, sessions().Fork(FromProto(in, call.caller())));
          v1::ForkSessionResponse out;
          for (const engine::SessionInfo& child : children) *out.add_sessions() = ToProto(child);
          return out;
        });
  }

  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return Answer<v1::CloseSessionRequest>(
        *context, Rpc::kCloseSession, *request, *response,
        [this](const SessionCall& call,
               const v1::CloseSessionRequest& in) -> absl::StatusOr<v1::CloseSessionResponse> {
          RETURN_IF_ERROR(sessions().Close(call.caller(), in.name()));
          return v1::CloseSessionResponse();
        });
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Converse(
      grpc::CallbackServerContext* context) override {
    return StartConverse(parts_, *context);
  }

 private:
  engine::Sessions& sessions() const { return parts_.engine.sessions(); }

  // `answer` gets the call and a Request, and returns the response.
  template <typename Request, typename F>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext& context, Rpc rpc,
                                   const grpc::ByteBuffer& in, grpc::ByteBuffer& out, F answer) {
    auto* call = new SessionCall(parts_, context, rpc, in, out);
    Request request;
    if (const absl::Status status = call->Read(in, request); status.ok()) {
      call->Answer(answer(*call, request));
    } else {
      call->End(status);
    }
    return call;
  }

  // `answer` gets the caller and a Request, and returns a session. A request with a content, or for
  // one, is answered by a frontend thread.
  template <typename Request, typename F>
  grpc::ServerUnaryReactor* AnswerSession(grpc::CallbackServerContext& context, Rpc rpc,
                                          const grpc::ByteBuffer& in, grpc::ByteBuffer& out,
                                          F answer) {
    auto* call = new SessionCall(parts_, context, rpc, in, out);
    auto request = std::make_shared<Request>();
    absl::Status status = call->Read(in, *request);
    if (status.ok() && !request->has_content()) {
      const absl::StatusOr<engine::SessionInfo> info = answer(call->caller(), *request);
      call->Answer(info.ok() ? absl::StatusOr<v1::Session>(ToProto(*info)) : info.status());
      return call;
    }
    if (status.ok()) {
      status = call->AnswerOnFrontend(
          held_, static_cast<int64_t>(in.Length()),
          [call, request, answer]() mutable { return answer(call->caller(), *request); });
    }
    if (!status.ok()) call->End(status);
    return call;
  }

  absl::StatusOr<v1::ListSessionsResponse> PageOf(const SessionCall& call,
                                                  const v1::ListSessionsRequest& in) const {
    ASSIGN_OR_RETURN(const PageRequest wanted,
                     ReadPageRequest(page_tokens_, "ListSessions", call.principal().name, in,
                                     base::SteadyNow()));
    ASSIGN_OR_RETURN(const engine::Sessions::Page page,
                     sessions().List(call.caller(), wanted.tenant, wanted.after, wanted.size));
    v1::ListSessionsResponse response;
    for (const engine::SessionInfo& info : page.sessions) {
      *response.add_sessions() = ToProto(info);
    }
    if (page.next != 0) {
      response.set_next_page_token(page_tokens_.Make(wanted.query, page.next, base::SteadyNow()));
    }
    return response;
  }

  const ServiceParts parts_;
  const PageTokens page_tokens_;
  HeldBytes held_{FrontendReactor::kMostHeldBytes};  // by calls with a content
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSessionService(const ServiceParts& parts) {
  return std::make_unique<SessionService>(parts);
}

}  // namespace quire::server
