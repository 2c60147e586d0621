#pragma once

// A token bucket. It allows a burst of events at once, and after that a number of events per
// second.

#include <algorithm>
#include <chrono>

namespace quire::server::door {

using Clock = std::chrono::steady_clock;

struct Rate {
  double per_second = 0;
  double burst = 0;
};

class TokenBucket {
 public:
  explicit TokenBucket(const Rate& rate) : rate_(rate), left_(rate.burst) {}

  // Counts one event. Returns false when there have been too many events lately.
  bool Take(Clock::time_point now) {
    if (last_ != Clock::time_point()) {
      const double seconds = std::chrono::duration<double>(now - last_).count();
      left_ = std::min(rate_.burst, left_ + seconds * rate_.per_second);
    }
    last_ = now;
    left_ -= 1;
    return left_ >= 0;
  }

 private:
  const Rate rate_;
  double left_;
  Clock::time_point last_;
};

}  // namespace quire::server::door
