#pragma once

// Decides which requests the door lets in. The decision depends on the headers alone, and is made
// before the body is read.

#include "server/call/rpc_counters.h"
#include "server/door/greeter.h"
#include "server/identity/identity_store.h"

namespace quire::server {

// Returns a gate that refuses these requests:
//   compressed requests, with UNIMPLEMENTED, because a few bytes may expand to gigabytes;
//   requests of unknown callers, with UNAUTHENTICATED, except at the health service;
//   reflection calls of callers that are not operators, with PERMISSION_DENIED.
// If `trusts_place`, every known caller counts as an operator. The gate borrows `identities` and
// `counters`. Thread-safe.
door::PeerGate MakeRequestGate(const IdentityStore& identities, bool trusts_place,
                               RpcCounters& counters);

}  // namespace quire::server
