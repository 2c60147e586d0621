#pragma once

// A clock that stands still until a test moves it.

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace quire::testing {

// Thread-safe.
class FakeClock final : public base::Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Nanoseconds(now_.load()); }
  void Advance(absl::Duration by) { now_ += absl::ToInt64Nanoseconds(by); }

 private:
  std::atomic<int64_t> now_ = 0;
};

}  // namespace quire::testing
