#pragma once

// SessionService.Converse: the turns of one session, in one call.

#include "server/grpc/rpc_context.h"

namespace grpc {
class ByteBuffer;
template <class Request, class Response>
class ServerBidiReactor;
}  // namespace grpc

namespace quire::server {

// Starts a call. The reactor deletes itself when the call has ended.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartConverse(
    const ServiceParts& parts, grpc::CallbackServerContext& context);

}  // namespace quire::server
