#pragma once

// Turns an error into the status that goes to the client.

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace quire::server {

// Converts `status` and adds google.rpc details. If the message begins with a name, as in
// "pinned_blocks: want 12 more, got 500 of 512 in use", the details have that name: BadRequest for
// InvalidArgument, QuotaFailure for ResourceExhausted, PreconditionFailure for FailedPrecondition,
// and ErrorInfo ("PREFIX_NOT_FOUND") for NotFound, AlreadyExists, PermissionDenied and Aborted. If
// a later retry can help, the details have a retry delay. A long message is shortened to fit into
// gRPC's trailers, and its control characters are escaped.
google::rpc::Status ToRpcStatus(const absl::Status& status);

}  // namespace quire::server
