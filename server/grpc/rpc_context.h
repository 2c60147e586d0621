#pragma once

// The parts that every RPC handler needs, and the questions that it asks of its call.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/engine.h"
#include "server/call/access_log.h"
#include "server/call/egress.h"
#include "server/call/rpc_counters.h"
#include "server/door/peer_directory.h"
#include "server/identity/identity_store.h"
#include "server/identity/principal.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace grpc {
class ByteBuffer;
class CallbackServerContext;
class ServerContextBase;
class Service;
class Status;
}  // namespace grpc

namespace quire::server {

// Everything borrowed outlives the services.
struct ServiceParts {
  engine::Engine& engine;
  Egress& egress;
  RpcCounters& counters;
  OpenCalls& open_calls;
  AccessLog& access_log;
  const door::PeerDirectory& peers;
  const IdentityStore& identities;
  std::function<void()> drain;  // ControlService.Drain
  absl::Duration linger;        // for a client to read the end of its answer
  bool trusts_place = false;    // whoever reaches this listener is an operator
};

// The services of quire.v1, each in its own file.
std::unique_ptr<grpc::Service> MakeGenerateService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeTokenService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeControlService(const ServiceParts& parts);

// Our services take and return bytes, and parse messages themselves: gRPC would answer a message
// that it cannot parse with UNIMPLEMENTED and no text. InvalidArgument when the bytes are not such
// a message, or a string in it is not UTF-8.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);
// False when the client or the door reset the call before its message came. gRPC calls the handler
// even then. Such a call is not a request: it is neither counted nor logged.
bool HasMessage(const grpc::ByteBuffer& bytes);
void SerializeMessage(const google::protobuf::Message& message, grpc::ByteBuffer& bytes);

using PrincipalPtr = std::shared_ptr<const Principal>;

// Returns the caller, known by bearer token or client certificate. UNAUTHENTICATED for a stranger,
// UNAVAILABLE when the client has disconnected.
absl::StatusOr<PrincipalPtr> AuthenticateCaller(const grpc::ServerContextBase& context,
                                                const ServiceParts& parts);
// PERMISSION_DENIED unless the caller is an operator, by role or by place.
absl::Status CheckOperator(bool trusts_place, const Principal& caller);

// Counts a call that has ended, and writes its line of the access log.
void NoteEnd(const ServiceParts& parts, const grpc::ServerContextBase& context, EndedCall call);

// Returns `field`, or else the `x-request-id` metadata, or else a new id, and sends it back in the
// initial metadata. InvalidArgument unless it is 1..128 characters of printable ASCII without
// spaces.
absl::StatusOr<std::string> TakeRequestId(grpc::CallbackServerContext& context,
                                          std::string_view field);

absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

// NotFound unless `model` is empty or the served one.
absl::Status CheckModel(const engine::Engine& engine, std::string_view model);

// Converts with the google.rpc details of ToRpcStatus.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace quire::server
