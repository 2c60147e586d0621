#pragma once

// Decides which requests the door lets in, by their headers alone and before a body is read.

#include "server/call/rpc_counters.h"
#include "server/door/greeter.h"
#include "server/identity/identity_store.h"

namespace quire::server {

// Returns a gate that refuses
//   compressed requests with UNIMPLEMENTED, since a few bytes may expand to gigabytes;
//   unknown callers with UNAUTHENTICATED, except at the health service;
//   reflection calls of other callers than operators with PERMISSION_DENIED. If `trusts_place`,
//   every known caller counts as an operator.
// The gate borrows `identities` and `counters`. Thread-safe.
door::PeerGate MakeRequestGate(const IdentityStore& identities, bool trusts_place,
                               RpcCounters& counters);

}  // namespace quire::server
