#include "base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace quire::base {
namespace {

class Steady final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() +
           absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

absl::Time Clock::Date() const { return absl::Now(); }

absl::Time Clock::FromDate(absl::Time date) const { return Now() + (date - Date()); }

const Clock& SteadyClock() {
  static const Steady clock;
  return clock;
}

}  // namespace quire::base
