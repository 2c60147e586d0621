#pragma once

// The progress of a long command, reported now and then.

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quire::tools {

// A Progress measures time from its construction.
class Progress {
 public:
  // Returns true when a line should be written: at least two seconds after the construction and
  // after the last call that returned true.
  bool IsDue() {
    const absl::Time now = absl::Now();
    if (now - last_ < absl::Seconds(2)) return false;
    last_ = now;
    return true;
  }
  // Estimates the seconds left. `share` of the work is done; it exceeds 0.
  int64_t SecondsLeft(double share) const {
    return absl::ToInt64Seconds((absl::Now() - begin_) * ((1.0 - share) / share));
  }
  double seconds() const { return absl::ToDoubleSeconds(absl::Now() - begin_); }

 private:
  const absl::Time begin_ = absl::Now();
  absl::Time last_ = begin_;
};

}  // namespace quire::tools
