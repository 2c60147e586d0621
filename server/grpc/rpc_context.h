#pragma once

// The objects that every RPC handler needs, and the steps that handlers share, such as parsing a
// message and authenticating a caller.

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

// All referenced objects must outlive the services.
struct ServiceParts {
  engine::Engine& engine;
  Egress& egress;
  RpcCounters& counters;
  OpenCalls& open_calls;
  AccessLog& access_log;
  const door::PeerDirectory& peers;
  const IdentityStore& identities;
  std::function<void()> drain;  // ControlService.Drain
  absl::Duration linger;        // how long a client may take to read the end of its answer
  absl::Duration max_prefix_ttl;
  size_t max_parsed_bytes = 0;   // memory that one message may take when it is parsed
  int64_t max_answer_bytes = 0;  // of an answer that is one message
  bool trusts_place = false;     // every caller at this listener counts as an operator
  // False: ControlService answers here only what every caller may ask.
  bool serves_operators = true;
};

// The services of quire.v1, each in its own file.
std::unique_ptr<grpc::Service> MakeGenerateService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeTokenService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakePrefixService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeSessionService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeControlService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeTenantService(const ServiceParts& parts);

// Parses `bytes` into `message`. Returns InvalidArgument when the bytes are not a message of that
// type, when a string in it is not UTF-8, or when the message would take more than
// ServiceParts::max_parsed_bytes. The caller must be known before. Our services parse messages
// themselves, because gRPC would answer an unparsable message with UNIMPLEMENTED and no text.
absl::Status ParseMessage(const ServiceParts& parts, const grpc::ByteBuffer& bytes,
                          google::protobuf::Message& message);
// Returns false if the client or the door reset the call before its message arrived. gRPC calls the
// handler even for such a call. Handlers neither count nor log it, because it is not a request.
bool HasMessage(const grpc::ByteBuffer& bytes);
void SerializeMessage(const google::protobuf::Message& message, grpc::ByteBuffer& bytes);

using PrincipalPtr = std::shared_ptr<const Principal>;

// Returns the caller, identified by a bearer token or a client certificate. Returns UNAUTHENTICATED
// for an unknown caller, and UNAVAILABLE when the client has disconnected.
absl::StatusOr<PrincipalPtr> AuthenticateCaller(const grpc::ServerContextBase& context,
                                                const ServiceParts& parts);
// Returns PERMISSION_DENIED unless `trusts_place` is true or the caller has the operator role.
absl::Status CheckOperator(bool trusts_place, const Principal& caller);

// Counts a call that has ended, and writes the call's line of the access log.
void NoteEnd(const ServiceParts& parts, const grpc::ServerContextBase& context, EndedCall call);

// Returns InvalidArgument unless `id` is 1..128 characters of printable ASCII without spaces.
absl::Status CheckRequestId(std::string_view id);
// The id of a call: its field request_id, or else the `x-request-id` metadata, or else a new id.
struct RequestId {
  std::string id;
  // True unless it is the field's. Whoever is between caller and server may send one id with many
  // calls.
  bool is_name = false;
};
// Returns what CheckRequestId returns for the id.
absl::StatusOr<RequestId> FindRequestId(const grpc::ServerContextBase& context,
                                        std::string_view field);
// Sends the id back in the initial metadata. Called once, before the answer begins.
void SendRequestId(grpc::CallbackServerContext& context, const std::string& id);
// Both, for a call without a field.
absl::StatusOr<std::string> TakeRequestId(grpc::CallbackServerContext& context);

// Returns `field`, or a new id if it is empty. Returns InvalidArgument unless the id has the form
// above.
absl::StatusOr<RequestId> RequestIdOrNew(std::string_view field);

absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

// Returns NotFound unless `model` is empty or names the served model.
absl::Status CheckModel(const engine::Engine& engine, std::string_view model);

// Converts `status`, and adds the google.rpc details that ToRpcStatus computes.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace quire::server
