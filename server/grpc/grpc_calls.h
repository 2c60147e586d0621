#pragma once

// Carries calls over gRPC.

#include <memory>

#include "server/call/call.h"

namespace grpc {
class CallbackGenericService;
}  // namespace grpc

namespace quire::server {

// Returns a service of gRPC that begins the calls of `calls`, and refuses all others with
// UNIMPLEMENTED. Borrows `calls`.
std::unique_ptr<grpc::CallbackGenericService> ServeCalls(const CallTable& calls);

}  // namespace quire::server
