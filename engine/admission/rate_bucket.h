#pragma once

// A limit on a rate, with bursts of up to a minute's worth (a token bucket).

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quire::engine {

// The bucket has room for `limit`, and gains `limit` a minute. It is full until it is first used.
// The limit is an argument of each call, since it may change. A limit of 0 means none.
class RateBucket {
 public:
  // Returns what is left at `now`: below zero after more was taken than there was; infinite without
  // a limit.
  double Left(int32_t limit, absl::Time now) const;
  // Returns OK if at least one is left. Otherwise returns ResourceExhausted, which begins with
  // `name` and has the time after which one is left (RetryAfter).
  absl::Status Check(const char* name, int32_t limit, absl::Time now) const;
  void Take(int32_t limit, double amount, absl::Time now);
  // Gives back what was taken too much, or takes more if `amount` is negative.
  void GiveBack(double amount) { level_ += amount; }

 private:
  double level_ = 0;  // at at_; may be more than the limit
  absl::Time at_ = absl::InfinitePast();
};

}  // namespace quire::engine
