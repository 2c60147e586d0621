#pragma once

// Turns an error into the status that goes to the client.

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace quire::server {

// Converts `status` and adds google.rpc details. If the message of an InvalidArgument begins with a
// field's name, the details have that name. If a later retry can help, the details have a retry
// delay. A long message is shortened to fit into gRPC's trailers, and its control characters are
// escaped.
google::rpc::Status ToRpcStatus(const absl::Status& status);

}  // namespace quire::server
