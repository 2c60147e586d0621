#include "engine/frontend/worker_pool.h"

#include <atomic>
#include <semaphore>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

TEST(WorkerPoolTest, RefusesAtOnceWhenItsQueueIsFull) {
  std::counting_semaphore<> started{0}, go_on{0};
  std::atomic<int> ran = 0;
  {
    WorkerPool pool(1, 2);
    ASSERT_TRUE(pool.Submit([&] {
                      started.release();
                      go_on.acquire();
                      ++ran;
                    })
                    .ok());
    started.acquire();  // the one thread is taken; the queue is empty
    EXPECT_TRUE(pool.Submit([&] { ++ran; }).ok());
    EXPECT_TRUE(pool.Submit([&] { ++ran; }).ok());
    EXPECT_EQ(pool.Submit([&] { ++ran; }).code(), absl::StatusCode::kResourceExhausted);
    go_on.release();
  }
  EXPECT_EQ(ran, 3) << "what was taken is run before the pool goes";
}

TEST(WorkerPoolTest, RunsOnAllItsThreads) {
  std::counting_semaphore<> both{0}, go_on{0};
  WorkerPool pool(2, 8);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pool.Submit([&] {
                      both.release();
                      go_on.acquire();
                    })
                    .ok());
  }
  EXPECT_TRUE(both.try_acquire_for(std::chrono::seconds(30)));
  EXPECT_TRUE(both.try_acquire_for(std::chrono::seconds(30)));
  go_on.release(2);
}

}  // namespace
}  // namespace quire::engine
