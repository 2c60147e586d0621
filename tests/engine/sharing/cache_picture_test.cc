// Tests when an engine makes pictures of its cache. The test runs each step, and moves the clock.

#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

class CachePictureTest : public ::testing::Test {
 protected:
  using Map = std::shared_ptr<const CacheMap>;

  CachePictureTest() {
    engine_ = testing::EngineHarness::Stepped(
        {.num_blocks = 2048, .max_num_seqs = 64, .clock = &clock_}, &model_);
    clock_.Advance(absl::Seconds(1));
  }
  std::shared_ptr<std::vector<Map>> Ask() {
    auto got = std::make_shared<std::vector<Map>>();
    engine_->GetCacheMap([got](absl::StatusOr<Map> map) {
      EXPECT_TRUE(map.ok()) << map.status();
      got->push_back(map.ok() ? *map : nullptr);
    });
    return got;
  }
  int RunUntilIdle() {
    for (int steps = 0;; ++steps) {
      const bool any = engine_->RunFrontend();
      if (!engine_->Step() && !any) return steps;
    }
  }

  testing::FakeClock clock_;
  testing::FakeModel* model_ = nullptr;
  std::unique_ptr<SteppedEngine> engine_;
};

TEST_F(CachePictureTest, IsMadeForThoseWhoAskAndAtMostEvery250Ms) {
  EXPECT_EQ(RunUntilIdle(), 0) << "an engine that nobody watches does nothing";
  const auto first = Ask(), beside = Ask();
  RunUntilIdle();
  ASSERT_EQ(first->size(), 1u);
  EXPECT_EQ(first->front()->num_blocks, 2048);
  EXPECT_EQ(beside->front(), first->front()) << "one picture serves all who wait";
  EXPECT_EQ(RunUntilIdle(), 0);
  clock_.Advance(absl::Milliseconds(249));
  const auto soon = Ask();
  RunUntilIdle();
  EXPECT_EQ(soon->front(), first->front());
  clock_.Advance(absl::Milliseconds(1));
  const auto later = Ask();
  RunUntilIdle();
  EXPECT_NE(later->front(), first->front());
}

TEST_F(CachePictureTest, ALargeTreeTakesSeveralSteps) {
  for (int i = 0; i < 40; ++i) {
    auto sink = std::make_shared<testing::CollectingSink>();
    const auto handle = engine_->Submit(testing::GreedyParams(testing::RandomIds(400, i), 2), sink);
    ASSERT_TRUE(handle.ok());
    RunUntilIdle();
  }
  const auto map = Ask();
  EXPECT_GE(RunUntilIdle(), 40 * 25 / 256);
  int64_t blocks = 0;
  for (const CacheMapNode& node : map->front()->nodes) blocks += node.num_blocks;
  EXPECT_EQ(blocks, engine_->stats().blocks_cached);
}

TEST_F(CachePictureTest, WhoAsksAnEngineThatStopsGetsAnAnswer) {
  absl::Status status;
  engine_->GetCacheMap([&](absl::StatusOr<Map> map) { status = map.status(); });
  engine_ = nullptr;
  EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
}

}  // namespace
}  // namespace quire::engine
