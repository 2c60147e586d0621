#pragma once

// Turns an error into the status that goes to the client.

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace quire::server {

// Adds google.rpc details: the field, when the message of an InvalidArgument begins with one, and a
// retry delay for an error that may pass. The message is cut to what gRPC's trailers take, and its
// control characters are escaped.
google::rpc::Status ToRpcStatus(const absl::Status& status);

}  // namespace quire::server
