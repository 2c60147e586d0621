#include "server/service/converse_call.h"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "quire/v1/session_service.pb.h"
#include "server/identity/grant.h"
#include "server/service/parsing.h"
#include "server/service/proto_conversion.h"
#include "server/service/rpc_status.h"
#include "server/service/session_conversion.h"

namespace quire::server {
namespace {

// While this many answers wait for a slow reader, no further message of the client is read.
constexpr size_t kMostWaiting = 16;

// The transport's threads parse messages, and hand everything else to the egress thread: it alone
// changes the members. So it also deletes the call, after everything that was handed over before.
class ConverseCall final : public Call, public StreamWriter {
 public:
  ConverseCall(const ServiceParts& parts, Transport& transport)
      : Call(parts.call, Rpc::kConverse, transport),
        parts_(parts),
        deadline_(transport.Deadline()) {}

  void Start() override {
    absl::Status status = Identify();
    if (status.ok()) session_caller_ = {.tenant = caller().tenant, .limits = caller().limits};
    SendId();
    Post([this, status = std::move(status)] {
      if (status.ok()) {
        Read();
      } else {
        Decide(status);
      }
    });
  }
  void OnMessage(std::string_view bytes) override {
    auto message = std::make_shared<v1::ConverseRequest>();
    absl::Status status = ParseMessage(bytes, parts_.max_parsed_bytes, *message);
    Post([this, message = std::move(message), status = std::move(status)] {
      is_reading_ = false;
      Take(*message, status);
      Advance();
    });
  }
  void OnNoMessage(bool is_cancelled) override {
    if (is_cancelled) return;
    Post([this] {
      is_reading_ = false;
      half_closed_ = true;
      Advance();
    });
  }
  void OnWritten(bool ok) override {
    Post([this, ok] { WriteDone(ok); });
  }
  void OnCancel() override {
    Post([this] {
      if (finished_) return;  // the transport may be gone
      Decide(CancelStatus());
      Advance();
    });
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
    Send(std::move(response), /*of_sink=*/true);
  }
  void Close(const absl::Status& status, const engine::RequestSummary&) override {
    sink_ = nullptr;
    submitted_ = nullptr;
    parts_.open_calls.End();
    SendEnd(status, turn_id_);
    Advance();
  }
  void Abandon() override { transport().Cancel(); }

 private:
  struct Outgoing {
    v1::ConverseResponse message;
    bool of_sink = false;
  };

  void Destroy() override {
    Post([this] { delete this; });
  }

  void Post(std::function<void()> work) { parts_.call.egress.Post(std::move(work)); }

  void Read() {
    is_reading_ = true;
    transport().Read();
  }

  // Handles one message.
  void Take(v1::ConverseRequest& message, const absl::Status& parsed) {
    has_message_ = true;
    if (end_.has_value()) return;
    absl::Status status = parsed;
    if (status.ok()) status = name_.empty() ? Begin(message) : Continue(message);
    if (!status.ok()) Decide(status);
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
    Send(std::move(response), /*of_sink=*/false);
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
    RETURN_IF_ERROR(Grant(caller(), params));
    auto sink = std::make_shared<StreamSink>(
        StreamSinkOptions{.token_ids = params.output.token_ids, .linger = parts_.call.linger},
        parts_.call.egress, *this);
    ASSIGN_OR_RETURN(submitted_, parts_.engine.Submit(std::move(params), sink));
    // The sink writes on this thread, so not before this function has returned.
    sink_ = std::move(sink);
    turn_id_ = id.id;
    has_written_ = false;
    parts_.open_calls.Begin();
    return absl::OkStatus();
  }

  void Send(v1::ConverseResponse response, bool of_sink) {
    outgoing_.push_back({.message = std::move(response), .of_sink = of_sink});
    StartNextWrite();
  }

  void SendEnd(const absl::Status& status, const std::string& request_id) {
    v1::ConverseResponse response;
    *response.mutable_end()->mutable_status() = ToRpcStatus(status);
    response.mutable_end()->set_request_id(request_id);
    const auto info = sessions().Get(session_caller_, name_);
    if (info.ok()) *response.mutable_end()->mutable_session() = ToProto(*info);
    Send(std::move(response), /*of_sink=*/false);
  }

  void StartNextWrite() {
    if (is_writing_) return;
    while (!outgoing_.empty()) {
      if (!reader_gone_) {
        is_writing_ = true;
        transport().Write(outgoing_.front().message);
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
    if (!ok) Decide(engine::CancelledStatus());
    StartNextWrite();
    Advance();
  }

  // Decides that the call ends with `status` after the turn, which is cancelled unless the call
  // succeeds. The first decision holds.
  void Decide(const absl::Status& status) {
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
    if (has_message_ || !end_->ok()) Note(*end_);
    transport().End(*end_, nullptr);
  }

  engine::Sessions& sessions() { return parts_.engine.sessions(); }

  const ServiceParts& parts_;  // not owned
  // What was posted may run after OnDone, so it uses the transport only before it ends the call.
  const absl::Time deadline_;
  engine::ContextCaller session_caller_;  // constant after Start

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

Call* NewConverseCall(const ServiceParts& parts, Transport& transport) {
  return new ConverseCall(parts, transport);
}

}  // namespace quire::server
