#include "engine/frontend/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <semaphore>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using Lane = WorkerPool::Lane;

TEST(WorkerPoolTest, RefusesAtOnceWhenItsQueueIsFull) {
  std::counting_semaphore<> started{0}, go_on{0};
  std::atomic<int> ran = 0;
  {
    WorkerPool pool(1, 2);
    ASSERT_TRUE(pool.Submit(Lane::kShort,
                            [&] {
                              started.release();
                              go_on.acquire();
                              ++ran;
                            })
                    .ok());
    started.acquire();  // the only thread is busy; the queue is empty
    EXPECT_TRUE(pool.Submit(Lane::kShort, [&] { ++ran; }).ok());
    EXPECT_TRUE(pool.Submit(Lane::kShort, [&] { ++ran; }).ok());
    EXPECT_EQ(pool.Submit(Lane::kShort, [&] { ++ran; }).code(),
              absl::StatusCode::kResourceExhausted);
    go_on.release();
  }
  EXPECT_EQ(ran, 3) << "what was taken is run before the pool goes";
}

TEST(WorkerPoolTest, RunsOnAllItsThreads) {
  std::counting_semaphore<> both{0}, go_on{0};
  WorkerPool pool(2, 8);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pool.Submit(Lane::kShort,
                            [&] {
                              both.release();
                              go_on.acquire();
                            })
                    .ok());
  }
  EXPECT_TRUE(both.try_acquire_for(std::chrono::seconds(30)));
  EXPECT_TRUE(both.try_acquire_for(std::chrono::seconds(30)));
  go_on.release(2);
}

TEST(WorkerPoolTest, LongWorkTakesOneThreadAndShortWorkPassesIt) {
  std::counting_semaphore<> long_started{0}, go_on{0}, short_ran{0};
  std::atomic<int> long_running = 0, most_long = 0;
  WorkerPool pool(2, 16);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(pool.Submit(Lane::kLong,
                            [&] {
                              most_long = std::max(most_long.load(), ++long_running);
                              long_started.release();
                              go_on.acquire();
                              --long_running;
                            })
                    .ok());
  }
  ASSERT_TRUE(pool.Submit(Lane::kShort, [&] { short_ran.release(); }).ok());
  long_started.acquire();
  EXPECT_TRUE(short_ran.try_acquire_for(std::chrono::seconds(30))) << "it is behind long work";
  go_on.release(4);
  for (int i = 1; i < 4; ++i) long_started.acquire();
  EXPECT_EQ(most_long, 1);
}

// Without a wake-up, a sleeping thread would find work only a second later. On average, a round
// must take less than half a second.
TEST(WorkerPoolTest, WorkWakesAThread) {
  constexpr int kRounds = 3;
  std::counting_semaphore<> done{0};
  WorkerPool pool(1, 2);
  absl::Duration waited;
  for (int round = 0; round < kRounds; ++round) {
    absl::SleepFor(absl::Milliseconds(20));  // gives the thread time to fall asleep
    const absl::Time begin = absl::Now();
    ASSERT_TRUE(pool.Submit(Lane::kShort, [&] { done.release(); }).ok());
    done.acquire();
    waited += absl::Now() - begin;
  }
  EXPECT_LT(waited, kRounds * absl::Milliseconds(500));
}

}  // namespace
}  // namespace quire::engine
