#include "server/stop_signals.h"

#include <chrono>
#include <csignal>
#include <future>
#include <unistd.h>

#include "gtest/gtest.h"

namespace quire::server {
namespace {

TEST(StopSignalsTest, TheFirstIsWaitedFor) {
  StopSignals signals;
  signals.StartServing();
  ::kill(::getpid(), SIGTERM);
  signals.Wait();
}

TEST(StopSignalsTest, HangUpReadsAgainAndEndsNothing) {
  StopSignals signals;
  signals.StartServing();
  std::promise<void> reloaded;
  signals.OnHangUp([&] { reloaded.set_value(); });
  for (const int number :
       {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGXFSZ, SIGPIPE, SIGIO, SIGPWR, SIGSTKFLT, SIGHUP}) {
    ::kill(::getpid(), number);
  }
  EXPECT_EQ(reloaded.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  signals.OnHangUp(nullptr);
  ::kill(::getpid(), SIGHUP);
  ::kill(::getpid(), SIGQUIT);
  signals.Wait();
}

TEST(StopSignalsTest, AStopOfItsOwnIsNoSignal) {
  StopSignals signals;
  EXPECT_FALSE(signals.WaitForStop(absl::Milliseconds(1)));
  signals.Stop();
  EXPECT_TRUE(signals.WaitForStop(absl::Hours(1)));
  signals.StartServing();
  signals.Wait();
  ::kill(::getpid(), SIGTERM);  // the first, which lets the server finish what it does
  signals.Stop();
  signals.Wait();
  sigset_t pending;
  do {
    sigpending(&pending);
  } while (sigismember(&pending, SIGTERM) != 0);
}

TEST(StopSignalsDeathTest, TheSecondExitsAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StopSignals signals;
        signals.StartServing();
        ::kill(::getpid(), SIGTERM);
        signals.Wait();
        ::kill(::getpid(), SIGINT);
        ::pause();
      },
      ::testing::ExitedWithCode(1), "");
}

TEST(StopSignalsDeathTest, BeforeServingThereIsNothingToFinish) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StopSignals signals;
        ::kill(::getpid(), SIGTERM);
        ::pause();
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace quire::server
