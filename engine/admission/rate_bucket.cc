#include "engine/admission/rate_bucket.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"

#include "engine/request/retry_after.h"

namespace quire::engine {

double RateBucket::Left(int32_t limit, absl::Time now) const {
  if (limit == 0) return std::numeric_limits<double>::infinity();
  if (at_ == absl::InfinitePast()) return limit;
  const double minutes = absl::ToDoubleMinutes(std::max(now - at_, absl::ZeroDuration()));
  return std::min<double>(limit, level_ + limit * minutes);
}

absl::Status RateBucket::Check(const char* name, int32_t limit, absl::Time now) const {
  const double left = Left(limit, now);
  if (left >= 1) return absl::OkStatus();
  // Rounded up, so that a client that waits this long is not refused again.
  const absl::Duration wait =
      absl::Ceil(absl::Minutes((1 - left) / limit), absl::Milliseconds(1)) + absl::Milliseconds(1);
  return WithRetryAfter(absl::ResourceExhaustedError(absl::StrFormat(
                            "%s: this tenant has used up its limit of %d: try again in %s", name,
                            limit, absl::FormatDuration(wait))),
                        wait);
}

void RateBucket::Take(int32_t limit, double amount, absl::Time now) {
  if (limit == 0) {  // a limit that is set later begins with a full bucket
    at_ = absl::InfinitePast();
    return;
  }
  level_ = Left(limit, now) - amount;
  at_ = now;
}

}  // namespace quire::engine
