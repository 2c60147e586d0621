#pragma once

// Decides which requests the door lets in, by their headers alone and before a body is read.

#include "server/call/rpc_counters.h"
#include "server/door/greeter.h"
#include "server/identity/identity_store.h"

namespace quire::server {

// The gate refuses
//   compressed requests, of which a few bytes may expand to gigabytes, with UNIMPLEMENTED;
//   unknown callers, except at the health service, with UNAUTHENTICATED;
//   reflection to all but operators, unless `trusts_place`, with PERMISSION_DENIED.
// It borrows `identities` and `counters`. Thread-safe.
door::PeerGate MakeRequestGate(const IdentityStore& identities, bool trusts_place,
                               RpcCounters& counters);

}  // namespace quire::server
