#pragma once

// Which requests the door lets in, by their headers alone: before a body is taken in.

#include "server/door/greeter.h"
#include "server/identity/identity_store.h"
#include "server/rpc_counters.h"

namespace quire::server {

// Refuses compressed requests, of which a few bytes may stand for gigabytes, with UNIMPLEMENTED;
// callers who are not known, except to the health service, with UNAUTHENTICATED; and reflection to
// all but operators with PERMISSION_DENIED, unless `trusts_place`. Borrows both. Thread-safe.
door::PeerGate MakeRequestGate(const IdentityStore& identities, bool trusts_place,
                               RpcCounters& counters);

}  // namespace quire::server
