#pragma once

// Time as an argument: production code asks a Clock, tests hand it a FakeClock.

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quire::base {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const { return absl::Now(); }

  // The process-wide wall clock; never destroyed.
  static const Clock& Real() {
    static const Clock clock;
    return clock;
  }
};

}  // namespace quire::base
