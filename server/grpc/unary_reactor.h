#pragma once

// The common part of calls that are answered with one message, perhaps later and by another thread
// than that of the handler. A call whose client does not read its answer ends all the same.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "base/interrupt.h"
#include "base/status_macros.h"
#include "server/call/egress.h"
#include "server/call/held_bytes.h"
#include "server/grpc/rpc_context.h"

namespace quire::server {

// One call, from its handler to OnDone.
class UnaryReactor : public grpc::ServerUnaryReactor {
 public:
  UnaryReactor(const ServiceParts& parts, grpc::CallbackServerContext& context, Rpc rpc,
               const grpc::ByteBuffer& request)
      : parts_(parts),
        context_(context),
        rpc_(rpc),
        has_message_(HasMessage(request)),
        linger_(std::make_shared<AnswerLinger>(parts.egress, parts.linger,
                                               [&context] { context.TryCancel(); })) {}

  // Finds the caller and the request id.
  absl::Status Identify() {
    ASSIGN_OR_RETURN(request_id_, TakeRequestId(context_));
    ASSIGN_OR_RETURN(caller_, AuthenticateCaller(context_, parts_));
    return absl::OkStatus();
  }

  // Finds the caller and the request id, and parses the call's message.
  absl::Status Read(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
    RETURN_IF_ERROR(Identify());
    return ParseMessage(parts_, bytes, message);
  }

  // Ends the call with `status`. Must be the last call on this object, which may be destroyed when
  // End returns.
  void End(const absl::Status& status) {
    if (has_message_) {
      NoteEnd(
          parts_, context_,
          {.rpc = rpc_, .caller = caller_.get(), .request_id = request_id_, .code = status.code()});
    }
    linger_->Answered();
    Finish(ToGrpcStatus(status));
  }

  void OnDone() override {
    linger_->Done();
    delete this;
  }

  // Must not be called before Identify or Read has returned OK.
  const Principal& caller() const { return *caller_; }

 protected:
  const ServiceParts& parts() const { return parts_; }
  const grpc::CallbackServerContext& context() const { return context_; }
  const std::string& request_id() const { return request_id_; }

 private:
  const ServiceParts& parts_;             // not owned
  grpc::CallbackServerContext& context_;  // not owned; lives until OnDone
  const Rpc rpc_;                         // constant
  const bool has_message_;                // constant
  std::string request_id_;                // constant after Identify, as is the next
  PrincipalPtr caller_;                   // null for an unknown caller
  const std::shared_ptr<AnswerLinger> linger_;
};

// A call that a frontend thread may answer.
class FrontendReactor : public UnaryReactor {
 public:
  // The bound for all calls of a service together: requests that wait or run, and answers until
  // they are read.
  static constexpr int64_t kMostHeldBytes = 256 << 20;
  static constexpr int64_t kCallBytes = 16 << 10;  // of a call itself

  using UnaryReactor::UnaryReactor;

  // Runs `work` and returns its status. Returns CANCELLED when the call was cancelled before `work`
  // began, or when the cancellation interrupted `work`.
  absl::Status RunUnlessCancelled(const std::function<absl::Status()>& work) {
    if (cancelled_) return engine::CancelledStatus();
    base::Interrupt interrupt(
        [this] { return cancelled_ ? engine::CancelledStatus() : absl::OkStatus(); });
    const absl::Status status = work();
    return interrupt.status().ok() ? status : interrupt.status();
  }

  // Counts `count` bytes for the caller's tenant until the call has ended.
  absl::Status Hold(HeldBytes& held, int64_t count) {
    share_.emplace(held, caller().tenant, caller().limits);
    return share_->Take(count);
  }
  // Called after Hold.
  absl::Status HoldMore(int64_t count) { return share_->Take(count); }

  // Runs `work` on the frontend pool. It waits there as one of the caller's tenant.
  absl::Status RunOnFrontend(int64_t num_bytes, std::function<void()> work) {
    const Principal& caller = UnaryReactor::caller();
    return parts().engine.RunOnFrontend(caller.tenant, caller.limits, num_bytes, std::move(work));
  }

  void OnCancel() override { cancelled_ = true; }

 private:
  std::optional<HeldBytes::Share> share_;  // set by Hold, before the work
  std::atomic<bool> cancelled_ = false;    // by the client or by a deadline
};

// Answers before it returns: `answer` gets the caller and a Request, fills a Response, and returns
// a status.
template <typename Request, typename Response, typename F>
grpc::ServerUnaryReactor* AnswerCall(const ServiceParts& parts,
                                     grpc::CallbackServerContext& context, Rpc rpc,
                                     const grpc::ByteBuffer& in, grpc::ByteBuffer& out, F answer) {
  auto* const call = new UnaryReactor(parts, context, rpc, in);
  Request request;
  Response response;
  absl::Status status = call->Read(in, request);
  if (status.ok()) status = answer(call->caller(), request, response);
  if (status.ok()) SerializeMessage(response, out);
  call->End(status);
  return call;
}

}  // namespace quire::server
