#include "server/grpc/converse_call.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "quire/v1/session_service.pb.h"
#include "server/grpc/proto_conversion.h"
#include "server/grpc/rpc_status.h"
#include "server/grpc/session_conversion.h"
#include "server/identity/grant.h"

namespace quire::server {
namespace {

// While this many answers wait for a slow reader, no further message of the client is read.
constexpr size_t kMostWaiting = 16;

// gRPC's threads parse messages, and hand everything else to the egress thread: it alone changes
// the members. So it also deletes the call, after everything that was handed over before.
class ConverseCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public StreamWriter {
 public:
  ConverseCall(const ServiceParts& parts, grpc::CallbackServerContext& context)
      : parts_(parts), context_(context), deadline_(DeadlineOf(context)) {
    absl::Status status = Identify();
    parts_.egress.Post([this, status = std::move(status)] {
      if (status.ok()) {
        Read();
      } else {
        End(status);
      }
    });
  }

  void OnReadDone(bool ok) override {
    auto message = std::make_shared<v1::ConverseRequest>();
    absl::Status status;
    if (ok) status = ParseMessage(parts_, incoming_, *message);
    parts_.egress.Post([this, ok, message = std::move(message), status = std::move(status)] {
      is_reading_ = false;
      if (ok) {
        Take(*message, status);
      } else {
        half_closed_ = true;
      }
      Advance();
    });
  }
  void OnWriteDone(bool ok) override {
    parts_.egress.Post([this, ok] { WriteDone(ok); });
  }
  void OnCancel() override {
    parts_.egress.Post([this] {
      End(deadline_ <= absl::Now() ? engine::PastDeadlineStatus() : engine::CancelledStatus());
      Advance();
    });
  }
  void OnDone() override {
    parts_.egress.Post([this] { delete this; });
  }

  // The writer of the turn's sink.
  void Write(engine::TokenDelta delta, const engine::RequestSummary* summary) override {
    v1::ConverseResponse response;
    v1::GenerateStreamResponse& message = *response.mutable_delta();
    message = ToProto(std::move(delta), parts_.engine);
    if (!std::exchange(has_written_, true)) {
      message.set_request_id(turn_id_);
      SetIdentity(parts_.engine.server_info(), message);
    }
    if (summary != nullptr) {
      *message.mutable_usage() = ToProto(summary->usage);
      *message.mutable_timings() = ToProto(summary->timings);
    }
    Send(response, /*of_sink=*/true);
  }
  void Close(const absl::Status& status, const engine::RequestSummary&) override {
    sink_ = nullptr;
    submitted_ = nullptr;
    parts_.open_calls.End();
    SendEnd(status, turn_id_);
    Advance();
  }
  void Abandon() override { context_.TryCancel(); }

 private:
  struct Outgoing {
    grpc::ByteBuffer bytes;
    bool of_sink = false;
  };

  absl::Status Identify() {
    ASSIGN_OR_RETURN(request_id_, TakeRequestId(context_));
    ASSIGN_OR_RETURN(caller_, AuthenticateCaller(context_, parts_));
    session_caller_ = ToSessionCaller(*caller_, /*is_operator=*/false);
    return absl::OkStatus();
  }

  void Read() {
    is_reading_ = true;
    StartRead(&incoming_);
  }

  // Handles one message.
  void Take(v1::ConverseRequest& message, const absl::Status& parsed) {
    has_message_ = true;
    if (end_.has_value()) return;
    absl::Status status = parsed;
    if (status.ok()) status = name_.empty() ? Begin(message) : Continue(message);
    if (!status.ok()) End(status);
  }

  absl::Status Begin(const v1::ConverseRequest& message) {
    absl::StatusOr<engine::SessionInfo> info;
    switch (message.message_case()) {
      case v1::ConverseRequest::kCreate: {
        if (message.create().has_content()) {
          return absl::InvalidArgumentError(
              "create.content: want none in Converse; make the session by CreateSession and open "
              "it");
        }
        ASSIGN_OR_RETURN(const engine::SessionParams params,
                         FromProto(message.create(), session_caller_));
        info = sessions().Create(params);
        owns_session_ = info.ok();
        break;
      }
      case v1::ConverseRequest::kOpen:
        info = sessions().Get(session_caller_, message.open());
        break;
      default:
        info = absl::InvalidArgumentError("message: want create or open first");
    }
    RETURN_IF_ERROR(info.status());
    name_ = info->name;
    v1::ConverseResponse response;
    *response.mutable_session() = ToProto(*info);
    Send(response, /*of_sink=*/false);
    return absl::OkStatus();
  }

  absl::Status Continue(v1::ConverseRequest& message) {
    switch (message.message_case()) {
      case v1::ConverseRequest::kTurn: {
        const std::string request_id = message.turn().request_id();
        const absl::Status status = StartTurn(std::move(*message.mutable_turn()));
        if (status.ok()) return status;
        // Without a session, no further turn can succeed.
        const absl::Status session = sessions().Get(session_caller_, name_).status();
        if (!session.ok()) return session;
        SendEnd(status, request_id);
        return absl::OkStatus();
      }
      case v1::ConverseRequest::kCancel:
        if (submitted_ != nullptr) submitted_->Cancel();
        return absl::OkStatus();
      default:
        return absl::InvalidArgumentError("message: want turn or cancel after the first");
    }
  }

  absl::Status StartTurn(v1::GenerateRequest turn) {
    if (sink_ != nullptr) {
      return absl::AbortedError("the session is in a turn: wait for its end, or cancel it");
    }
    if (turn.has_session_name()) {
      return absl::InvalidArgumentError("session_name: want none in Converse");
    }
    turn.set_session_name(name_);
    ASSIGN_OR_RETURN(const RequestId id, RequestIdOrNew(turn.request_id()));
    ASSIGN_OR_RETURN(engine::GenerateParams params, FromProto(std::move(turn)));
    params.request_id = id.id;
    params.id_is_name = id.is_name;
    params.deadline = deadline_;
    RETURN_IF_ERROR(Grant(*caller_, params));
    auto sink = std::make_shared<StreamSink>(
        StreamSinkOptions{.token_ids = params.output.token_ids, .linger = parts_.linger},
        parts_.egress, *this);
    ASSIGN_OR_RETURN(submitted_, parts_.engine.Submit(std::move(params), sink));
    // The sink writes on this thread, so not before this function has returned.
    sink_ = std::move(sink);
    turn_id_ = id.id;
    has_written_ = false;
    parts_.open_calls.Begin();
    return absl::OkStatus();
  }

  void Send(const v1::ConverseResponse& response, bool of_sink) {
    Outgoing& added = outgoing_.emplace_back();
    added.of_sink = of_sink;
    SerializeMessage(response, added.bytes);
    StartNextWrite();
  }

  void SendEnd(const absl::Status& status, const std::string& request_id) {
    v1::ConverseResponse response;
    *response.mutable_end()->mutable_status() = ToRpcStatus(status);
    response.mutable_end()->set_request_id(request_id);
    const auto info = sessions().Get(session_caller_, name_);
    if (info.ok()) *response.mutable_end()->mutable_session() = ToProto(*info);
    Send(response, /*of_sink=*/false);
  }

  void StartNextWrite() {
    if (is_writing_) return;
    while (!outgoing_.empty()) {
      if (!reader_gone_) {
        is_writing_ = true;
        StartWrite(&outgoing_.front().bytes);
        return;
      }
      const bool of_sink = outgoing_.front().of_sink;
      outgoing_.pop_front();
      if (of_sink) sink_->OnWriteDone(false);
    }
  }

  void WriteDone(bool ok) {
    const bool of_sink = outgoing_.front().of_sink;
    outgoing_.pop_front();
    is_writing_ = false;
    if (!ok) reader_gone_ = true;
    if (of_sink) sink_->OnWriteDone(ok);
    if (!ok) End(engine::CancelledStatus());
    StartNextWrite();
    Advance();
  }

  // Decides that the call ends with `status` after the turn, which is cancelled unless the call
  // succeeds. The first decision holds.
  void End(const absl::Status& status) {
    if (end_.has_value()) return;
    end_ = status;
    if (!status.ok() && submitted_ != nullptr) submitted_->Cancel();
    // Nobody will continue the session. If a turn runs, this cancels it too.
    if (owns_session_ && !status.ok()) sessions().Close(session_caller_, name_).IgnoreError();
    Advance();
  }

  // Reads the next message, or ends the call, if it is time for that.
  void Advance() {
    if (finished_) return;
    if (half_closed_ && sink_ == nullptr && !end_.has_value()) {
      end_ = name_.empty()
                 ? absl::InvalidArgumentError("message: want create or open first, got none")
                 : absl::OkStatus();
    }
    if (!end_.has_value()) {
      if (!is_reading_ && !half_closed_ && outgoing_.size() < kMostWaiting) Read();
      return;
    }
    if (sink_ != nullptr || is_writing_ || !outgoing_.empty()) return;
    finished_ = true;
    if (owns_session_) sessions().Close(session_caller_, name_).IgnoreError();
    if (has_message_ || !end_->ok()) {
      NoteEnd(parts_, context_,
              {.rpc = Rpc::kConverse,
               .caller = caller_.get(),
               .request_id = request_id_,
               .code = end_->code()});
    }
    Finish(ToGrpcStatus(*end_));
  }

  engine::Sessions& sessions() { return parts_.engine.sessions(); }

  const ServiceParts& parts_;  // not owned
  // Not owned; lives until OnDone. What was posted may run later, so it uses the context only
  // before Finish.
  grpc::CallbackServerContext& context_;
  const absl::Time deadline_;
  std::string request_id_;  // constant after Identify, as are the next two
  PrincipalPtr caller_;     // null for an unknown caller
  engine::SessionCaller session_caller_;
  grpc::ByteBuffer incoming_;  // read by OnReadDone, before the next StartRead

  // Egress thread only.
  std::string name_;           // of the session; empty before the first message
  bool owns_session_ = false;  // the call created the session
  bool has_message_ = false;
  bool is_reading_ = false;
  bool is_writing_ = false;  // the first of outgoing_
  bool half_closed_ = false;
  bool reader_gone_ = false;
  bool finished_ = false;
  std::optional<absl::Status> end_;
  std::deque<Outgoing> outgoing_;
  // The sink and the request of the turn that runs; null between turns.
  std::shared_ptr<StreamSink> sink_;
  std::shared_ptr<engine::SubmittedRequest> submitted_;
  std::string turn_id_;
  bool has_written_ = false;  // a delta
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartConverse(
    const ServiceParts& parts, grpc::CallbackServerContext& context) {
  return new ConverseCall(parts, context);
}

}  // namespace quire::server
