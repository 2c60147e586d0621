#include "engine/request/cache_window.h"

#include <deque>
#include <rapidcheck.h>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

TEST(CacheWindowTest, RoundsUpToBlocksAndDropsAQuarter) {
  const CacheWindow window = CacheWindow::Of(4, 1000, 16);
  EXPECT_EQ(window.sinks, 16);
  EXPECT_EQ(window.window, 1008);
  EXPECT_EQ(window.drop, 256);
  EXPECT_EQ(window.capacity(), 1024);
  EXPECT_EQ(CacheWindow::Of(0, 17, 16).window, 32);
  EXPECT_EQ(CacheWindow::Of(0, 17, 16).drop, 16);
  EXPECT_EQ(CacheWindow::Of(0, 17, 16).sinks, 0);
}

TEST(CacheWindowTest, OffNothingMoves) {
  const CacheWindow off;
  EXPECT_FALSE(off.on());
  EXPECT_EQ(off.NumShifts(1 << 30), 0);
  EXPECT_EQ(off.Position(1 << 30), 1 << 30);
}

// Compares CacheWindow with a list that keeps the sinks and drops the oldest tokens after the
// sinks.
TEST(CacheWindowTest, PositionsAreThoseOfACacheThatForgetsItsOldest) {
  EXPECT_TRUE(rc::check([] {
    const int32_t block_size = *rc::gen::inRange(1, 9);
    const auto sinks = *rc::gen::inRange<int64_t>(0, 3 * block_size);
    const auto tokens = *rc::gen::inRange<int64_t>(block_size + 1, 12 * block_size);
    const CacheWindow window = CacheWindow::Of(sinks, tokens, block_size);
    RC_ASSERT(window.sinks >= sinks && window.sinks < sinks + block_size);
    RC_ASSERT(window.window >= tokens && window.window < tokens + block_size);
    RC_ASSERT(window.sinks % block_size == 0 && window.window % block_size == 0);
    RC_ASSERT(window.drop % block_size == 0 && window.drop > 0);
    RC_ASSERT(window.drop < window.window);
    std::deque<int64_t> cache;
    int64_t num_shifts = 0;
    for (int64_t index = 0; index < 20 * window.capacity(); ++index) {
      if (static_cast<int64_t>(cache.size()) == window.capacity()) {
        cache.erase(cache.begin() + window.sinks, cache.begin() + window.sinks + window.drop);
        ++num_shifts;
        RC_ASSERT(window.NextShift(index - 1) == index);
      }
      cache.push_back(index);
      RC_ASSERT(window.NumShifts(index) == num_shifts);
      RC_ASSERT(window.Position(index) == static_cast<int64_t>(cache.size()) - 1);
      RC_ASSERT(window.NextShift(index) > index);
      if (static_cast<int64_t>(cache.size()) <= window.sinks) continue;  // the window is empty
      // No key is rotated more than four times by shifts. The oldest token of the window has been
      // rotated most often.
      const int64_t oldest = cache[window.sinks];
      RC_ASSERT(num_shifts - window.NumShifts(oldest) <= 4);
    }
  }));
}

}  // namespace
}  // namespace quire::engine
