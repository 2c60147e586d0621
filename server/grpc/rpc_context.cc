#include "server/grpc/rpc_context.h"

#include <algorithm>
#include <optional>
#include <random>

#include <grpc/support/time.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "server/grpc/parsed_size.h"
#include "server/grpc/rpc_status.h"

namespace quire::server {
namespace {

using base::LogField;

constexpr char kRequestIdKey[] = "x-request-id";
constexpr char kAuthorizationKey[] = "authorization";
constexpr size_t kMaxRequestIdLength = 128;

std::optional<std::string_view> FindMetadata(const grpc::ServerContextBase& context,
                                             const char* key) {
  const auto it = context.client_metadata().find(key);
  if (it == context.client_metadata().end()) return std::nullopt;
  return std::string_view(it->second.data(), it->second.size());
}

std::string NewRequestId() {
  thread_local std::mt19937_64 random(std::random_device{}());  // ids must be unique, not secret
  return absl::StrCat("req-", absl::Hex(random(), absl::kZeroPad16));
}

}  // namespace

absl::Status ParseMessage(const ServiceParts& parts, const grpc::ByteBuffer& bytes,
                          google::protobuf::Message& message) {
  // Each reader takes the bytes out of a buffer of its own, which refers to the same bytes.
  grpc::ByteBuffer uncounted = bytes;
  grpc::ProtoBufferReader counted(&uncounted);
  const size_t size = counted.status().ok() ? ParsedSize(*message.GetDescriptor(), counted) : 0;
  if (size > parts.max_parsed_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "message: want at most %d bytes of memory when it is read, got %d in a message of %d "
        "bytes; send fewer elements at once",
        parts.max_parsed_bytes, size, bytes.Length()));
  }
  grpc::ByteBuffer unread = bytes;
  grpc::ProtoBufferReader reader(&unread);
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("message: want a %s in proto3's wire format, its strings in UTF-8; got %d "
                      "bytes that are none",
                      message.GetTypeName(), bytes.Length()));
}

bool HasMessage(const grpc::ByteBuffer& bytes) { return bytes.Valid(); }

void SerializeMessage(const google::protobuf::Message& message, grpc::ByteBuffer& bytes) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  grpc::ByteBuffer serialized(&slice, 1);
  bytes.Swap(&serialized);
}

absl::StatusOr<PrincipalPtr> AuthenticateCaller(const grpc::ServerContextBase& context,
                                                const ServiceParts& parts) {
  const std::shared_ptr<const door::Peer> peer = parts.peers.Find(context.peer());
  if (peer == nullptr) return absl::UnavailableError("the client has gone");
  return parts.identities.Get()->Authenticate(FindMetadata(context, kAuthorizationKey),
                                              peer->certificate_name);
}

absl::Status CheckOperator(bool trusts_place, const Principal& caller) {
  if (trusts_place || caller.is_operator) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "want the role operator: write roles=operator on the caller's line of --auth_token_file, or "
      "ask at a --control_listen on loopback");
}

void NoteEnd(const ServiceParts& parts, const grpc::ServerContextBase& context, EndedCall call) {
  parts.counters.Count(call.rpc, call.code);
  const std::shared_ptr<const door::Peer> peer = parts.peers.Find(context.peer());
  if (peer != nullptr) call.peer = peer->address;
  parts.access_log.Ended(call, base::SteadyNow());
}

absl::Status CheckRequestId(std::string_view id) {
  const auto printable = [](char c) { return c > ' ' && c < '\x7f'; };
  if (!id.empty() && id.size() <= kMaxRequestIdLength && std::ranges::all_of(id, printable)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("request_id: want at most %d characters of printable ASCII without spaces, "
                      "got %d bytes",
                      kMaxRequestIdLength, id.size()));
}

absl::StatusOr<RequestId> FindRequestId(const grpc::ServerContextBase& context,
                                        std::string_view field) {
  const std::string_view metadata = FindMetadata(context, kRequestIdKey).value_or("");
  if (!field.empty() || metadata.empty()) return RequestIdOrNew(field);
  RETURN_IF_ERROR(CheckRequestId(metadata));
  return RequestId{.id = std::string(metadata), .is_name = true};
}

void SendRequestId(grpc::CallbackServerContext& context, const std::string& id) {
  context.AddInitialMetadata(kRequestIdKey, id);
}

absl::StatusOr<std::string> TakeRequestId(grpc::CallbackServerContext& context) {
  ASSIGN_OR_RETURN(RequestId found, FindRequestId(context, ""));
  SendRequestId(context, found.id);
  return std::move(found.id);
}

absl::StatusOr<RequestId> RequestIdOrNew(std::string_view field) {
  if (field.empty()) return RequestId{.id = NewRequestId(), .is_name = true};
  RETURN_IF_ERROR(CheckRequestId(field));
  return RequestId{.id = std::string(field)};
}

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  // context.deadline() is not used, because it cannot hold a time after the year 2262.
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_REALTIME);
  if (deadline.tv_sec == gpr_inf_future(GPR_CLOCK_REALTIME).tv_sec) return absl::InfiniteFuture();
  return absl::FromUnixSeconds(deadline.tv_sec) + absl::Nanoseconds(deadline.tv_nsec);
}

absl::Status CheckModel(const engine::Engine& engine, std::string_view model) {
  const std::string& served = engine.model_info().name;
  if (model.empty() || model == served) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrFormat("model: \"%s\" is not served here, \"%s\" is", model, served));
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status details = ToRpcStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(),
                      details.SerializeAsString());
}

}  // namespace quire::server
