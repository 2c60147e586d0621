#pragma once

// The time after which a refused request may be sent again, as a part of the status.

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quire::engine {

// Returns `status` with `delay`, which is at least 0.
absl::Status WithRetryAfter(absl::Status status, absl::Duration delay);
// Returns nullopt if the status has no such time.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

}  // namespace quire::engine
