#pragma once

// The common part of calls that take one message and answer with one, perhaps later and by another
// thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "google/protobuf/message.h"

#include "base/interrupt.h"
#include "base/status_macros.h"
#include "engine/request/contexts.h"
#include "server/call/call.h"
#include "server/call/held_bytes.h"
#include "server/identity/grant.h"
#include "server/service/parsing.h"
#include "server/service/services.h"

namespace quire::server {

class UnaryCall : public Call {
 public:
  UnaryCall(const ServiceParts& parts, Rpc rpc, Transport& transport)
      : Call(parts.call, rpc, transport), parts_(parts) {}

  // Returns who asks for a prefix or a session. Only after Read.
  engine::ContextCaller context_caller() const {
    return {
        .tenant = caller().tenant, .is_operator = caller_is_operator(), .limits = caller().limits};
  }

 protected:
  // Finds the caller and the id, and parses the message.
  absl::Status Read(std::string_view bytes, google::protobuf::Message& message) {
    RETURN_IF_ERROR(Identify());
    return ParseMessage(bytes, parts_.max_parsed_bytes, message);
  }

  // Ends the call with `answer`, unless `status` is an error. As End, it must be the last call on
  // this object.
  void Answer(const absl::Status& status, const google::protobuf::Message* answer = nullptr) {
    End(status, status.ok() ? answer : nullptr);
  }
  template <typename Response>
  void Answer(const absl::StatusOr<Response>& response) {
    Answer(response.status(), response.ok() ? &*response : nullptr);
  }

  // Returns true if the caller counts as an operator at this address.
  bool caller_is_operator() const { return CheckOperator(parts_.trusts_place, caller()).ok(); }
  const ServiceParts& parts() const { return parts_; }

 private:
  const ServiceParts& parts_;  // not owned
};

// A call that a frontend thread may answer.
class FrontendCall : public UnaryCall {
 public:
  // The bound for all calls of a service together: requests that wait or run, and answers until
  // they are read.
  static constexpr int64_t kMostHeldBytes = 256 << 20;
  static constexpr int64_t kCallBytes = 16 << 10;  // of a call itself

  using UnaryCall::UnaryCall;

  void OnCancel() override { cancelled_ = true; }

 protected:
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
    return parts().engine.RunOnFrontend(caller().tenant, caller().limits, num_bytes,
                                        std::move(work));
  }

 private:
  std::optional<HeldBytes::Share> share_;  // set by Hold, before the work
  std::atomic<bool> cancelled_ = false;    // by the client or by a deadline
};

// Adds an RPC that answers at once: `answer` gets the caller and a Request, fills a Response, and
// returns a status.
template <typename Request, typename Response, typename F>
void AddAnsweredCall(const ServiceParts& parts, Rpc rpc, CallTable& calls, F answer) {
  class Answered final : public UnaryCall {
   public:
    Answered(const ServiceParts& parts, Rpc rpc, Transport& transport, F answer)
        : UnaryCall(parts, rpc, transport), answer_(std::move(answer)) {}

    void OnMessage(std::string_view bytes) override {
      Request request;
      Response response;
      absl::Status status = Read(bytes, request);
      if (status.ok()) status = answer_(caller(), request, response);
      Answer(status, &response);
    }

   private:
    const F answer_;
  };
  calls.Add(rpc, [&parts, rpc, answer = std::move(answer)](Transport& transport) -> Call* {
    return new Answered(parts, rpc, transport, answer);
  });
}

}  // namespace quire::server
