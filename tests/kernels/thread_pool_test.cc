#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace quire::kernels::cpu {
namespace {

TEST(ThreadPoolTest, EveryItemRunsOnceAndIsSeenByTheCaller) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int64_t items = 0; items < 200; ++items) {
      // The ints are not atomic, so that ThreadSanitizer checks the hand-over from the workers to
      // the caller.
      std::vector<int> runs(static_cast<size_t>(items));
      pool.ParallelFor(items, [&](int64_t item, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        ++runs[item];
      });
      EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(items), 1));
    }
  }
}

TEST(ThreadPoolTest, WorkersTakePart) {
  // Two items that wait for each other can end only if two threads run them.
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> arrived{0};
    std::atomic<int> threads_seen{0};
    pool.ParallelFor(2, [&](int64_t, int thread) {
      threads_seen.fetch_or(1 << thread);
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(threads_seen.load(), 3);
  }
}

// Without a wake-up, a parked worker checks for work only after one second. A pool that relied on
// these checks would take longer than the bound of half a second per round.
TEST(ThreadPoolTest, ParkedWorkersWake) {
  constexpr int kRounds = 5;
  ThreadPool pool(3);
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < kRounds; ++round) {
    // This thread stays busy until the workers have stopped spinning and have parked.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    std::atomic<int> arrived{0};
    pool.ParallelFor(3, [&](int64_t, int) {
      arrived.fetch_add(1);
      while (arrived.load() < 3) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 3);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kRounds * std::chrono::milliseconds(500));
}

TEST(ThreadPoolTest, ALoopEndsWithItsLastItem) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  std::atomic<bool> done{false};
  // The item of the worker ends long after the item of the caller.
  pool.ParallelFor(2, [&](int64_t, int thread) {
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
    if (thread == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  });
  EXPECT_TRUE(done);
}

TEST(ThreadPoolTest, ThreadsWriteTheirOwnScratch) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(4);
  for (int round = 0; round < 300; ++round) {
    pool.ParallelFor(16, [&](int64_t item, int thread) { sums[thread] += item; });
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), 300 * 120);
}

}  // namespace
}  // namespace quire::kernels::cpu
