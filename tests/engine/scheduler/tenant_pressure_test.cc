// Tests who makes way for whom where several tenants want more blocks than there are, how often one
// may be passed, and how tenants share a step. The cache has 64 blocks of 4 tokens.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "engine/scheduler/scheduler.h"
#include "tests/engine/scheduler/simulation.h"

namespace quire::engine {
namespace {

SimulationConfig Config() { return {.num_blocks = 64, .scheduler = {.max_num_seqs = 16}}; }

int32_t Preemptions(const Simulation& simulation, SequenceId id) {
  return simulation.ended().at(id).sequence.num_preemptions;
}

// Runs steps until the sequence is planned.
void RunUntilPlanned(Simulation& simulation, SequenceId id) {
  for (int step = 0; !simulation.Planned(id); ++step) {
    ASSERT_LT(step, 1000);
    ASSERT_TRUE(simulation.Step());
  }
}

TEST(TenantPressureTest, ANewSequenceTakesBlocksOfTheTenantBeyondItsPart) {
  Simulation simulation(Config());
  const SequenceId oldest =
      simulation.Add({.prompt = Prompt(100, 0), .max_tokens = 20, .tenant = "greedy"});
  const SequenceId younger =
      simulation.Add({.prompt = Prompt(80, 200), .max_tokens = 40, .tenant = "greedy"});
  RunUntilPlanned(simulation, younger);
  const SequenceId light =
      simulation.Add({.prompt = Prompt(60, 400), .max_tokens = 4, .tenant = "light"});
  for (int step = 0; step < 3 && !simulation.Planned(light); ++step) simulation.Step();
  EXPECT_TRUE(simulation.Planned(light)) << "at once, not when one of the others has ended";
  simulation.Run();
  EXPECT_EQ(Preemptions(simulation, oldest), 0);
  EXPECT_EQ(Preemptions(simulation, younger), 1);
  EXPECT_EQ(Preemptions(simulation, light), 0);
}

TEST(TenantPressureTest, ATenantWithinItsPartMakesWayForNoStart) {
  Simulation simulation(Config());
  // The oldest of all makes way for nobody, and the second has 15 to 18 of the 21 blocks of its
  // part.
  const SequenceId oldest =
      simulation.Add({.prompt = Prompt(160, 0), .max_tokens = 16, .tenant = "a"});
  const SequenceId within =
      simulation.Add({.prompt = Prompt(60, 200), .max_tokens = 12, .tenant = "b"});
  RunUntilPlanned(simulation, within);
  const SequenceId late =
      simulation.Add({.prompt = Prompt(60, 400), .max_tokens = 4, .tenant = "c"});
  simulation.Run();
  for (const SequenceId id : {oldest, within, late}) EXPECT_EQ(Preemptions(simulation, id), 0);
}

TEST(TenantPressureTest, OneThatMadeWayMakesTokensBeforeItDoesAgain) {
  Simulation simulation(Config());
  simulation.Add({.prompt = Prompt(100, 0), .max_tokens = 20, .tenant = "greedy"});
  const SequenceId younger =
      simulation.Add({.prompt = Prompt(80, 200), .max_tokens = 40, .tenant = "greedy"});
  int num_light = 0;
  for (int step = 0; step < 2000 && !simulation.ended().contains(younger); ++step) {
    simulation.Step();
    // A light request comes whenever the other runs.
    const auto last = static_cast<SequenceId>(younger + num_light);
    const bool none_left = num_light == 0 || simulation.ended().contains(last);
    if (simulation.Planned(younger) && none_left) {
      simulation.Add(
          {.prompt = Prompt(60, 400 + 100 * num_light), .max_tokens = 4, .tenant = "light"});
      ++num_light;
    }
  }
  simulation.Run();
  EXPECT_GT(num_light, 2);
  EXPECT_EQ(Preemptions(simulation, younger), 1);
}

TEST(TenantPressureTest, GrowthTakesTheBlocksOfTheTenantMostBeyondItsPart) {
  SimulationConfig config = Config();
  config.scheduler.headroom_blocks = 0;
  Simulation simulation(config);
  // They fill 63 blocks. The parts are 21 blocks, so two tenants are beyond theirs.
  simulation.Add({.prompt = Prompt(16, 0), .max_tokens = 6, .tenant = "light"});
  const SequenceId most =
      simulation.Add({.prompt = Prompt(117, 200), .max_tokens = 4, .tenant = "most"});
  const SequenceId less =
      simulation.Add({.prompt = Prompt(93, 400), .max_tokens = 4, .tenant = "less"});
  const SequenceId grows =
      simulation.Add({.prompt = Prompt(20, 600), .max_tokens = 6, .tenant = "light"});
  simulation.Step();
  ASSERT_EQ(simulation.blocks().num_available(), 1);
  ASSERT_EQ(simulation.scheduler().stats().num_preemptions, 0);
  simulation.Step();  // each of the light tenant's needs a block more
  EXPECT_TRUE(simulation.Planned(grows)) << "those of others make way, though they are older";
  EXPECT_EQ(simulation.scheduler().stats().num_preemptions, 1);
  simulation.Run();
  EXPECT_EQ(Preemptions(simulation, most), 1);
  EXPECT_EQ(Preemptions(simulation, less), 0) << "it would have been cheaper";
}

TEST(TenantPressureTest, AStartThatLacksBlocksBarsNoOtherTenant) {
  Simulation simulation(Config());
  simulation.Add({.prompt = Prompt(120, 0), .max_tokens = 40, .tenant = "large"});
  simulation.Step();
  const SequenceId lacking = simulation.Add(
      {.prompt = Prompt(140, 200), .max_tokens = 4, .priority = 1, .tenant = "large"});
  simulation.Step();
  ASSERT_FALSE(simulation.Planned(lacking)) << "it needs 35 of 34 blocks";
  const SequenceId other =
      simulation.Add({.prompt = Prompt(40, 400), .max_tokens = 4, .tenant = "other"});
  simulation.Step();
  EXPECT_TRUE(simulation.Planned(other)) << "in the step in which the first one fails again";
  simulation.Run();
}

// Returns how many prompt tokens each tenant gets in a step of 64 where "a" has three long prompts
// and "b" one, with shares 1 and `share`. An eighth of the step is the oldest's, which is one of
// "a".
std::map<std::string, int32_t> TokensOf(int32_t share, int32_t wanted_of_b) {
  Simulation simulation(
      {.num_blocks = 1024, .scheduler = {.max_num_seqs = 16, .max_num_batched_tokens = 64}});
  for (int i = 0; i < 3; ++i) {
    simulation.Add({.prompt = Prompt(600, 1000 * i), .max_tokens = 1, .tenant = "a"});
  }
  simulation.Step();
  const SequenceId last = simulation.Add({.prompt = Prompt(wanted_of_b, 5000),
                                          .max_tokens = 1,
                                          .tenant = "b",
                                          .limits = {.share = share}});
  simulation.Step();
  std::map<std::string, int32_t> tokens;
  for (const SequenceId id : simulation.planned()) {
    tokens[id == last ? "b" : "a"] += simulation.Entry(id).num_tokens;
  }
  simulation.Run();
  return tokens;
}

TEST(TenantPressureTest, APromptStepIsDividedAmongTenantsByTheirShares) {
  using Tokens = std::map<std::string, int32_t>;
  EXPECT_EQ(TokensOf(/*share=*/1, /*wanted_of_b=*/600), (Tokens{{"a", 8 + 28}, {"b", 28}}));
  EXPECT_EQ(TokensOf(/*share=*/3, /*wanted_of_b=*/600), (Tokens{{"a", 8 + 14}, {"b", 42}}));
  EXPECT_EQ(TokensOf(/*share=*/3, /*wanted_of_b=*/10), (Tokens{{"a", 54}, {"b", 10}}))
      << "the other gets what one has no use for";
}

TEST(TenantPressureTest, ATenantWithinItsPartIsPassedAFewTimes) {
  SimulationConfig config = Config();
  config.block_size = 16;
  Simulation simulation(config);
  // It runs for 90 steps, and makes way for nobody.
  const SequenceId oldest =
      simulation.Add({.prompt = Prompt(600, 0), .max_tokens = 90, .tenant = "a"});
  std::vector<SequenceId> small;
  const auto add_small = [&] {
    const auto first = static_cast<int32_t>(10000 + 100 * small.size());
    const auto max_tokens = static_cast<int32_t>(4 + 2 * (small.size() % 4));
    small.push_back(
        simulation.Add({.prompt = Prompt(66, first), .max_tokens = max_tokens, .tenant = "c"}));
  };
  for (int i = 0; i < 4; ++i) add_small();
  RunUntilPlanned(simulation, small.back());
  const SequenceId large =
      simulation.Add({.prompt = Prompt(250, 2000), .max_tokens = 4, .tenant = "b"});
  // The small ones never end all at once, so what is free never does for the large one.
  std::set<SequenceId> passed;
  while (!simulation.Planned(large) && !simulation.ended().contains(oldest)) {
    while (small.size() < simulation.ended().size() + 4) add_small();
    simulation.Step();
    for (size_t i = 4; i < small.size(); ++i) {
      if (simulation.Planned(small[i])) passed.insert(small[i]);
    }
  }
  EXPECT_TRUE(simulation.Planned(large)) << "before the oldest has ended";
  EXPECT_GT(passed.size(), 0u);
  // Some started before it first lacked blocks, or in the turn of the oldest.
  EXPECT_LE(passed.size(), 2 * static_cast<size_t>(kMostPasses));
  simulation.Run();
}

}  // namespace
}  // namespace quire::engine
