// Tests the limit on the blocks of the KV cache that a tenant may hold.

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "engine/scheduler/scheduler.h"
#include "tests/engine/scheduler/simulation.h"

namespace quire::engine {
namespace {

double ChargeOf(Simulation& simulation, const char* tenant) {
  return simulation.blocks().charges().Charged(tenant);
}

TEST(BlockQuotaTest, NewSequencesWaitAtTheLimitAndOthersPass) {
  Simulation simulation({.num_blocks = 64});
  std::vector<SequenceId> many;
  for (int i = 0; i < 4; ++i) {
    many.push_back(simulation.Add({.prompt = Prompt(12, 100 * i),
                                   .max_tokens = 3,
                                   .tenant = "many",
                                   .limits = {.max_blocks = 8}}));
    simulation.now += absl::Seconds(1);
  }
  const SequenceId few =
      simulation.Add({.prompt = Prompt(12, 900), .max_tokens = 3, .tenant = "few"});
  simulation.Step();
  EXPECT_EQ(simulation.planned(), (std::vector{many[0], few, many[1]}));
  EXPECT_EQ(ChargeOf(simulation, "many"), 6);
  EXPECT_EQ(ChargeOf(simulation, "few"), 3);
  simulation.Run();
  EXPECT_EQ(simulation.ended().at(many[3]).cause, EndCause::kFinished);
  EXPECT_EQ(simulation.scheduler().stats().num_preemptions, 0);
  EXPECT_EQ(ChargeOf(simulation, "many"), 0) << "what is cached is free";
}

TEST(BlockQuotaTest, WhatIsSharedCountsOnce) {
  Simulation simulation({.num_blocks = 64});
  simulation.Add({.prompt = Prompt(24, 0), .max_tokens = 1, .tenant = "t"});
  simulation.Run();
  for (int i = 0; i < 3; ++i) {  // 6 blocks of all, and one of each
    simulation.Add({.prompt = Prompt(25, 0),
                    .max_tokens = 2,
                    .seed = static_cast<uint64_t>(i),
                    .tenant = "t",
                    .limits = {.max_blocks = 9}});
  }
  simulation.Step();
  EXPECT_EQ(simulation.planned().size(), 3u);
  EXPECT_EQ(ChargeOf(simulation, "t"), 9);
  simulation.Run();
}

TEST(BlockQuotaTest, TheOldestGoesOnAndTheOthersWaitForIt) {
  Simulation simulation({.num_blocks = 64});
  const auto add = [&](int first) {
    return simulation.Add(
        {.prompt = Prompt(8, first), .max_tokens = 20, .tenant = "t", .limits = {.max_blocks = 7}});
  };
  const SequenceId oldest = add(0);
  const SequenceId younger = add(100);
  while (!simulation.ended().contains(oldest)) {
    ASSERT_TRUE(simulation.Step());
    ASSERT_LE(ChargeOf(simulation, "t"), 7 + 3) << "what the younger one held, and the oldest";
  }
  EXPECT_LT(simulation.scheduler().stats().generated_tokens, 20 + 12) << "the younger one waited";
  simulation.Run();
  EXPECT_EQ(simulation.ended().at(younger).cause, EndCause::kFinished);
  EXPECT_EQ(simulation.scheduler().stats().num_preemptions, 0);
}

TEST(BlockQuotaTest, AStalledOneDoesNotKeepTheOthersFromGrowing) {
  Simulation simulation({.num_blocks = 64});
  std::vector<SequenceId> ids;
  for (int i = 0; i < 2; ++i) {
    ids.push_back(simulation.Add({.prompt = Prompt(8, 100 * i),
                                  .max_tokens = 20,
                                  .tenant = "t",
                                  .limits = {.max_blocks = 5}}));
  }
  simulation.Step();
  simulation.sink(ids[0]).room = 0;
  while (!simulation.ended().contains(ids[1])) ASSERT_TRUE(simulation.Step());
  simulation.sink(ids[0]).room = 100;
  simulation.Run();
}

}  // namespace
}  // namespace quire::engine
