#include "base/timer_thread.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace quire::base {
namespace {

TEST(TimerThreadTest, RunsWhatIsDueAndWhatItIsWokenFor) {
  std::atomic<int> num_runs = 0;
  absl::Notification first, due, woken;
  TimerThread timers(SteadyClock());
  timers.Start([&]() -> absl::Time {
    switch (++num_runs) {
      case 1:
        first.Notify();
        return SteadyNow() + absl::Milliseconds(1);
      case 2:
        due.Notify();
        return absl::InfiniteFuture();
      case 3:
        woken.Notify();
    }
    return absl::InfiniteFuture();
  });
  first.WaitForNotification();
  due.WaitForNotification();
  timers.Wake();
  woken.WaitForNotification();
  timers.Stop();
  const int before = num_runs;
  timers.Wake();
  timers.Stop();
  EXPECT_EQ(num_runs, before);
}

TEST(TimerThreadTest, IsWokenFromWithin) {
  std::atomic<int> num_runs = 0;
  absl::Notification again;
  TimerThread timers(SteadyClock());
  timers.Start([&] {
    if (++num_runs == 1) timers.Wake();
    if (num_runs == 2) again.Notify();
    return absl::InfiniteFuture();
  });
  again.WaitForNotification();
}

TEST(TimerThreadTest, EndsWithoutAStart) {
  TimerThread timers(SteadyClock());
  timers.Wake();
}

}  // namespace
}  // namespace quire::base
