#pragma once

// A clock that stands still until a test moves it. Its date is the system's, unless a test sets it.

#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"

#include "base/clock.h"

namespace quire::testing {

// Thread-safe.
class FakeClock final : public base::Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Nanoseconds(now_.load()); }
  void Advance(absl::Duration by) { now_ += absl::ToInt64Nanoseconds(by); }
  absl::Time Date() const override { return absl::Now() + absl::Nanoseconds(date_step_.load()); }
  // Somebody sets the wall clock.
  void StepDate(absl::Duration by) { date_step_ += absl::ToInt64Nanoseconds(by); }

 private:
  std::atomic<int64_t> now_ = 0;
  std::atomic<int64_t> date_step_ = 0;
};

}  // namespace quire::testing
