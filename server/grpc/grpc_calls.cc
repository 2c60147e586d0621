#include "server/grpc/grpc_calls.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <grpc/support/time.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include "absl/strings/str_format.h"
#include "google/protobuf/message_lite.h"

#include "server/service/rpc_status.h"

namespace quire::server {
namespace {

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

// Converts `status`, and adds the google.rpc details that ToRpcStatus computes.
grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status details = ToRpcStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(),
                      details.SerializeAsString());
}

// Carries one call. Deletes itself when the call is done.
class GrpcTransport final : public grpc::ServerGenericBidiReactor, public Transport {
 public:
  GrpcTransport(const CallTable& calls, grpc::GenericCallbackServerContext& context)
      : context_(context) {
    const CallTable::Begin* const begin = calls.Find(context.method());
    if (begin != nullptr) {
      call_ = (*begin)(*this);
      call_->Start();
      return;
    }
    End(absl::UnimplementedError(absl::StrFormat(
            "method: want one that this server serves, got \"%s\"", context.method())),
        nullptr);
  }

  // What gRPC reports.
  void OnReadDone(bool ok) override {
    const bool has_begun = (state_.load(std::memory_order_acquire) & kBegun) != 0;
    if (!ok) {
      call_->OnNoMessage(/*is_cancelled=*/has_begun && context_.IsCancelled());
      return;
    }
    TakeMessage();
    // OnCancel waits for this, so that a call is not cancelled while it begins.
    const unsigned before = state_.fetch_or(kBegun, std::memory_order_acq_rel);
    if (before == kCancelled) call_->OnCancel();
  }
  void OnWriteDone(bool ok) override { call_->OnWritten(ok); }
  void OnCancel() override {
    const unsigned before = state_.fetch_or(kCancelled, std::memory_order_acq_rel);
    if ((before & kBegun) != 0) call_->OnCancel();
  }
  void OnDone() override {
    if (call_ != nullptr) call_->OnDone();
    delete this;
  }

  // What the call asks for.
  std::optional<std::string_view> Metadata(std::string_view key) const override {
    const auto it = context_.client_metadata().find(grpc::string_ref(key.data(), key.size()));
    if (it == context_.client_metadata().end()) return std::nullopt;
    return std::string_view(it->second.data(), it->second.size());
  }
  std::string PeerName() const override { return context_.peer(); }
  absl::Time Deadline() const override {
    // context.deadline() is not used, because it cannot hold a time after the year 2262.
    const gpr_timespec deadline =
        gpr_convert_clock_type(context_.raw_deadline(), GPR_CLOCK_REALTIME);
    if (deadline.tv_sec == gpr_inf_future(GPR_CLOCK_REALTIME).tv_sec) return absl::InfiniteFuture();
    return absl::FromUnixSeconds(deadline.tv_sec) + absl::Nanoseconds(deadline.tv_nsec);
  }
  void AddMetadata(std::string_view key, std::string_view value) override {
    context_.AddInitialMetadata(std::string(key), std::string(value));
  }
  void Read() override { StartRead(&incoming_); }
  void Write(const google::protobuf::MessageLite& message) override {
    outgoing_ = Serialize(message);
    StartWrite(&outgoing_);
  }
  void End(const absl::Status& status, const google::protobuf::MessageLite* answer) override {
    if (answer == nullptr) return Finish(ToGrpcStatus(status));
    outgoing_ = Serialize(*answer);
    StartWriteAndFinish(&outgoing_, {}, ToGrpcStatus(status));
  }
  void Cancel() override { context_.TryCancel(); }

 private:
  enum : unsigned { kBegun = 1, kCancelled = 2 };  // the call has had its first message

  // A message is one slice for the call: most are one already, and a parser is quickest on one.
  void TakeMessage() {
    grpc::Slice message;
    if (!incoming_.TrySingleSlice(&message).ok()) incoming_.DumpToSingleSlice(&message);
    incoming_.Clear();
    call_->OnMessage({reinterpret_cast<const char*>(message.begin()), message.size()});
  }

  grpc::GenericCallbackServerContext& context_;  // not owned; lives until OnDone
  Call* call_ = nullptr;  // null: the method is not served; destroys itself after its OnDone
  std::atomic<unsigned> state_ = 0;
  grpc::ByteBuffer incoming_, outgoing_;
};

class Calls final : public grpc::CallbackGenericService {
 public:
  explicit Calls(const CallTable& calls) : calls_(calls) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new GrpcTransport(calls_, *context);
  }

 private:
  const CallTable& calls_;  // not owned
};

}  // namespace

std::unique_ptr<grpc::CallbackGenericService> ServeCalls(const CallTable& calls) {
  return std::make_unique<Calls>(calls);
}

}  // namespace quire::server
