#pragma once

// Which requests the door lets in, by their headers alone: before a body is taken in.

#include "server/bearer_tokens.h"
#include "server/door/greeter.h"
#include "server/rpc_counters.h"

namespace quire::server {

// Refuses compressed requests, of which a few bytes may stand for gigabytes, with UNIMPLEMENTED,
// and callers who are not known, except to the health service, with UNAUTHENTICATED. Borrows both;
// `tokens` may be null. Thread-safe.
door::PeerGate MakeRequestGate(const BearerTokens* tokens, RpcCounters& counters);

}  // namespace quire::server
