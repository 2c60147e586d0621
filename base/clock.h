#pragma once

// Time that passes, for durations, time-outs and alarms: it never jumps, as a date does when
// somebody sets it. A steady time counts from a moment of the machine's own and compares with no
// date; a deadline that a client gives as a date is turned into one on arrival.

#include "absl/time/time.h"

namespace quire::base {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;

  // When it will show what the wall clock calls `date`, if nobody sets that meanwhile.
  absl::Time FromDate(absl::Time date) const;
};

// Lives as long as the process.
const Clock& SteadyClock();
inline absl::Time SteadyNow() { return SteadyClock().Now(); }

}  // namespace quire::base
