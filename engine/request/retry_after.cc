#include "engine/request/retry_after.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quire::engine {
namespace {
constexpr char kPayload[] = "quire.retry_after_ns";
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration delay) {
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(delay))));
  return status;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  int64_t nanoseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &nanoseconds)) {
    return std::nullopt;
  }
  return absl::Nanoseconds(nanoseconds);
}

}  // namespace quire::engine
