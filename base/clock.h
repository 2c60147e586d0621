#pragma once

// Steady time, for durations, timeouts and alarms. It never jumps, unlike the wall clock, which
// somebody may set. It counts from an arbitrary moment of the machine, so it cannot be compared
// with a date. A client's deadline, which is a date, is converted to steady time on arrival.

#include "absl/time/time.h"

namespace quire::base {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;

  // Converts `date` of the wall clock to this clock's time. The result holds only if nobody sets
  // the wall clock meanwhile.
  absl::Time FromDate(absl::Time date) const;
};

// Returns a clock that lives as long as the process.
const Clock& SteadyClock();
inline absl::Time SteadyNow() { return SteadyClock().Now(); }

}  // namespace quire::base
