#pragma once

// Steady time, for durations, timeouts and alarms. Steady time never jumps, whereas wall-clock time
// jumps when somebody sets the clock. The zero of steady time is arbitrary, so a steady time cannot
// be compared with a date. A client's deadline is a date, so it is converted to steady time on
// arrival.

#include "absl/time/time.h"

namespace quire::base {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  // Returns the time of the wall clock.
  virtual absl::Time Date() const;

  // Converts `date`, a time of the wall clock, to this clock's time. The result is valid until
  // somebody sets the wall clock.
  absl::Time FromDate(absl::Time date) const;
};

// Returns a clock that lives as long as the process.
const Clock& SteadyClock();
inline absl::Time SteadyNow() { return SteadyClock().Now(); }

}  // namespace quire::base
