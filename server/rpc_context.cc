#include "server/rpc_context.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/strings.h"
#include "server/proto_conversion.h"

namespace quire::server {
namespace {

constexpr char kRequestIdKey[] = "x-request-id";
constexpr char kAuthorizationKey[] = "authorization";
constexpr size_t kMaxRequestIdLength = 128;

std::optional<std::string_view> FindMetadata(const grpc::CallbackServerContext& context,
                                             const char* key) {
  const auto it = context.client_metadata().find(key);
  if (it == context.client_metadata().end()) return std::nullopt;
  return std::string_view(it->second.data(), it->second.size());
}

std::string NewRequestId() {
  thread_local std::mt19937_64 random(std::random_device{}());  // unlike others, not a secret
  return absl::StrCat("req-", absl::Hex(random(), absl::kZeroPad16));
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  grpc::ByteBuffer unread = bytes;  // shares them
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

absl::StatusOr<std::string> AuthenticateCaller(std::string_view authorization,
                                               const door::Peer& peer, const BearerTokens* tokens) {
  if (tokens != nullptr) {
    const auto match = tokens->Match(authorization);
    if (!match) {
      return absl::UnauthenticatedError(
          "want metadata \"authorization: Bearer TOKEN\" with a token that this server knows");
    }
    return absl::StrCat("token:", *match);
  }
  return peer.certificate_name.empty() ? "" : absl::StrCat("certificate:", peer.certificate_name);
}

absl::StatusOr<std::string> AuthenticateCaller(const grpc::CallbackServerContext& context,
                                               const ServiceParts& parts) {
  const std::shared_ptr<const door::Peer> peer = parts.peers.Find(context.peer());
  if (peer == nullptr) return absl::UnavailableError("the client has gone");
  const std::string_view authorization =
      FindMetadata(context, kAuthorizationKey).value_or(std::string_view());
  return AuthenticateCaller(authorization, *peer, parts.tokens);
}

absl::StatusOr<std::string> TakeRequestId(grpc::CallbackServerContext& context,
                                          std::string_view field) {
  std::string id(field);
  if (id.empty()) id = std::string(FindMetadata(context, kRequestIdKey).value_or(""));
  if (id.empty()) id = NewRequestId();
  const auto printable = [](char c) { return c > ' ' && c < '\x7f'; };
  if (id.size() > kMaxRequestIdLength || !std::ranges::all_of(id, printable)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request_id: want at most %d characters of printable ASCII without spaces, "
                        "got %d bytes",
                        kMaxRequestIdLength, id.size()));
  }
  context.AddInitialMetadata(kRequestIdKey, id);
  return id;
}

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
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
