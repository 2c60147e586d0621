#include "server/stop_signals.h"

#include <csignal>
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
