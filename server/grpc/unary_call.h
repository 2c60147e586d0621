#pragma once

// A unary call without an object of its own: it runs on gRPC's default reactor, and is answered by
// the handler or by one callback. A call whose answer takes work on several threads, or that must
// end although its client does not read, is a UnaryReactor instead.

#include <memory>
#include <string>
#include <utility>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "base/status_macros.h"
#include "server/grpc/rpc_context.h"

namespace quire::server {

struct UnaryCall {
  UnaryCall(grpc::CallbackServerContext& of, Rpc which)
      : context(of), reactor(of.DefaultReactor()), rpc(which) {}

  // The context and the reactor belong to gRPC, and exist until the call has ended. The reactor is
  // stored because a second call of DefaultReactor() would overwrite it.
  grpc::CallbackServerContext& context;
  grpc::ServerUnaryReactor* reactor;
  Rpc rpc;
  bool has_message = false;
  std::string request_id;
  PrincipalPtr caller;  // null for an unknown caller
};

// Reads a message, and finds the caller and the request id.
inline absl::Status ReadCall(const ServiceParts& parts, const grpc::ByteBuffer& in, UnaryCall& call,
                             google::protobuf::Message& request) {
  call.has_message = HasMessage(in);
  ASSIGN_OR_RETURN(call.request_id, TakeRequestId(call.context, ""));
  ASSIGN_OR_RETURN(call.caller, AuthenticateCaller(call.context, parts));
  return ParseMessage(in, request);
}

// Ends the call. Its context must not be used afterwards.
inline grpc::ServerUnaryReactor* EndCall(const ServiceParts& parts, const UnaryCall& call,
                                         const absl::Status& status) {
  if (call.has_message) {
    NoteEnd(parts, call.context,
            {.rpc = call.rpc,
             .caller = call.caller.get(),
             .request_id = call.request_id,
             .code = status.code()});
  }
  call.reactor->Finish(ToGrpcStatus(status));
  return call.reactor;
}

// Answers before it returns: `answer` gets the caller and a Request, fills a Response, and returns
// a status.
template <typename Request, typename Response, typename F>
grpc::ServerUnaryReactor* AnswerCall(const ServiceParts& parts,
                                     grpc::CallbackServerContext& context, Rpc rpc,
                                     const grpc::ByteBuffer& in, grpc::ByteBuffer& out, F answer) {
  UnaryCall call(context, rpc);
  Request request;
  Response response;
  absl::Status status = ReadCall(parts, in, call, request);
  if (status.ok()) status = answer(*call.caller, request, response);
  if (status.ok()) SerializeMessage(response, out);
  return EndCall(parts, call, status);
}

}  // namespace quire::server
