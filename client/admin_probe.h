#pragma once

// The server's admin port, asked over plain HTTP: it needs no certificate and no token.

#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire::client {

// What GET /readyz at HOST:PORT says: true for 200, false for 503. InvalidArgument when `address`
// is no HOST:PORT; Unavailable, with the cure, when nobody answers as the admin port does.
absl::StatusOr<bool> AskReady(std::string_view address, absl::Duration timeout);

}  // namespace quire::client
