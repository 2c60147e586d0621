#include "base/clock.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "tests/testing/fake_clock.h"

namespace quire::base {
namespace {

TEST(ClockTest, TheSteadyOneNeverGoesBack) {
  absl::Time last = SteadyNow();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = SteadyNow();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(ClockTest, ADateIsAsFarAwayAsTheWallClockSays) {
  const testing::FakeClock clock;
  const absl::Duration away = clock.FromDate(absl::Now() + absl::Hours(5)) - clock.Now();
  EXPECT_LE(away, absl::Hours(5));
  EXPECT_GT(away, absl::Hours(5) - absl::Minutes(1));
  EXPECT_EQ(clock.FromDate(absl::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(clock.FromDate(absl::InfinitePast()), absl::InfinitePast());
}

}  // namespace
}  // namespace quire::base
