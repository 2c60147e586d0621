#pragma once

// Asks the server's admin port over plain HTTP, which needs no certificate and no token.

#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire::client {

// Sends GET /readyz to `address` (HOST:PORT). Returns true for the answer 200 and false for 503.
// Returns InvalidArgument when `address` is not HOST:PORT. Returns Unavailable for any other
// answer, or when there is none; the message then says what the user can do.
absl::StatusOr<bool> AskReady(std::string_view address, absl::Duration timeout);

}  // namespace quire::client
