#pragma once

// Asks the server's admin port over plain HTTP, which needs no certificate and no token.

#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire::client {

// Sends GET /readyz to `address` (HOST:PORT). Returns true for 200 and false for 503.
// InvalidArgument when `address` is not HOST:PORT. Unavailable when there is no answer, or when the
// answer is not an admin port's. The message of Unavailable tells the cure.
absl::StatusOr<bool> AskReady(std::string_view address, absl::Duration timeout);

}  // namespace quire::client
