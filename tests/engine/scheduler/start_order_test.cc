// Tests the order in which requests are served: which waiting request starts next, how many
// requests may pass one that does not fit, and how many tokens the oldest request and each tenant
// get.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "engine/scheduler/scheduler.h"
#include "tests/engine/scheduler/simulation.h"

namespace quire::engine {
namespace {

// Runs until `num_starts` sequences have started. Returns the sequences in the order of their first
// plans.
std::vector<SequenceId> StartOrder(Simulation& simulation, size_t num_starts) {
  std::vector<SequenceId> order;
  std::set<SequenceId> seen;
  while (order.size() < num_starts && simulation.Step()) {
    for (const SequenceId id : simulation.planned()) {
      if (seen.insert(id).second) order.push_back(id);
    }
  }
  return order;
}

TEST(StartOrderTest, LargerPrioritiesStartFirstThenEarlierDeadlines) {
  Simulation simulation({.scheduler = {.max_num_seqs = 1, .starts_per_oldest = 100}});
  const absl::Time t = simulation.now;
  simulation.Add({.prompt = Prompt(4, 0), .max_tokens = 2});
  simulation.Add({.prompt = Prompt(4, 10), .max_tokens = 2, .deadline = t + absl::Hours(2)});
  simulation.Add({.prompt = Prompt(4, 20), .max_tokens = 2, .deadline = t + absl::Hours(1)});
  simulation.Add({.prompt = Prompt(4, 30), .max_tokens = 2, .priority = 1});
  EXPECT_EQ(StartOrder(simulation, 4), (std::vector<SequenceId>{4, 3, 2, 1}));
}

TEST(StartOrderTest, APriorityBelowZeroRisesByOneForEachTenSecondsOfWaiting) {
  Simulation simulation({.scheduler = {.max_num_seqs = 1, .starts_per_oldest = 100}});
  const SequenceId background =
      simulation.Add({.prompt = Prompt(4, 10), .max_tokens = 1, .priority = -3});
  simulation.now += absl::Seconds(19);
  const SequenceId before =
      simulation.Add({.prompt = Prompt(4, 20), .max_tokens = 1, .priority = -1});
  simulation.now += absl::Milliseconds(999);  // 19.999 s: the first one has -2
  EXPECT_EQ(StartOrder(simulation, 1), std::vector{before});
  simulation.now += absl::Milliseconds(1);
  const SequenceId after =
      simulation.Add({.prompt = Prompt(4, 30), .max_tokens = 1, .priority = -1});
  EXPECT_EQ(StartOrder(simulation, 2), (std::vector{background, after}));
}

TEST(StartOrderTest, NoPriorityRisesAboveZero) {
  Simulation simulation({.scheduler = {.max_num_seqs = 1, .starts_per_oldest = 100}});
  const SequenceId background =
      simulation.Add({.prompt = Prompt(4, 10), .max_tokens = 1, .priority = -1});
  const SequenceId plain = simulation.Add({.prompt = Prompt(4, 20), .max_tokens = 1});
  simulation.now += absl::Hours(1);
  const SequenceId urgent =
      simulation.Add({.prompt = Prompt(4, 30), .max_tokens = 1, .priority = 1});
  EXPECT_EQ(StartOrder(simulation, 3), (std::vector{urgent, background, plain}));
}

TEST(StartOrderTest, TheTenantServedLeastStartsFirst) {
  Simulation simulation({.scheduler = {.max_num_seqs = 1, .starts_per_oldest = 100}});
  for (int i = 0; i < 6; ++i) {
    simulation.Add({.prompt = Prompt(8, 20 * i), .max_tokens = 2, .tenant = "many"});
  }
  for (int i = 0; i < 2; ++i) {
    simulation.Add({.prompt = Prompt(8, 200 + 20 * i), .max_tokens = 2, .tenant = "few"});
  }
  const std::vector<SequenceId> order = StartOrder(simulation, 8);
  EXPECT_EQ(std::vector(order.begin(), order.begin() + 4), (std::vector<SequenceId>{1, 7, 2, 8}));
}

TEST(StartOrderTest, ATenantRunsWithinItsPlacesAndLetsOthersPass) {
  Simulation simulation({.scheduler = {.max_num_seqs = 8}});
  const TenantLimits limits{.max_running = 3};
  std::vector<SequenceId> many;
  for (int i = 0; i < 3; ++i) {
    many.push_back(simulation.Add({.prompt = Prompt(4, 20 * i),
                                   .max_tokens = 6,
                                   .n = 2,
                                   .tenant = "many",
                                   .limits = limits}));
  }
  const SequenceId few =
      simulation.Add({.prompt = Prompt(4, 200), .max_tokens = 2, .tenant = "few"});
  simulation.Step();
  EXPECT_EQ(simulation.planned(), (std::vector<SequenceId>{many[0], few}));
  simulation.Run();
  EXPECT_TRUE(simulation.ended().contains(many[2])) << "its turn came";
}

TEST(StartOrderTest, ATenantLeavesPlacesToOthers) {
  Simulation simulation({.scheduler = {.max_num_seqs = 8}});
  for (int i = 0; i < 9; ++i) {
    simulation.Add({.prompt = Prompt(4, 20 * i),
                    .max_tokens = 6,
                    .tenant = "many",
                    .limits = {.leaves_places = true}});
  }
  simulation.Step();
  EXPECT_EQ(simulation.planned().size(), 7u);
}

TEST(StartOrderTest, ALargerShareStartsMoreOften) {
  Simulation simulation({.scheduler = {.max_num_seqs = 1, .starts_per_oldest = 100}});
  for (int i = 0; i < 4; ++i) {
    simulation.Add({.prompt = Prompt(8, 20 * i), .max_tokens = 2, .tenant = "one"});
  }
  for (int i = 0; i < 4; ++i) {
    simulation.Add({.prompt = Prompt(8, 200 + 20 * i),
                    .max_tokens = 2,
                    .tenant = "three",
                    .limits = {.share = 3}});
  }
  EXPECT_EQ(StartOrder(simulation, 5), (std::vector<SequenceId>{1, 5, 6, 7, 2}));
}

TEST(StartOrderTest, NoPriorityStarvesTheOldest) {
  Simulation simulation({.scheduler = {.max_num_seqs = 1, .starts_per_oldest = 8}});
  std::vector<SequenceId> low;
  for (int i = 0; i < 3; ++i) {
    low.push_back(simulation.Add({.prompt = Prompt(4, i), .max_tokens = 1, .priority = -100}));
  }
  std::vector<SequenceId> order;
  for (int i = 0; i < 40; ++i) {  // a request of priority 100 comes before each step
    simulation.Add({.prompt = Prompt(4, 100 + 10 * i), .max_tokens = 1, .priority = 100});
    simulation.Step();
    ASSERT_EQ(simulation.planned().size(), 1u);
    order.push_back(simulation.planned()[0]);
  }
  for (size_t k = 0; k < low.size(); ++k) {
    const auto place = std::ranges::find(order, low[k]) - order.begin();
    EXPECT_LT(place, static_cast<int64_t>(8 * (k + 1)));
    EXPECT_GE(place, 7);
  }
}

TEST(StartOrderTest, OfThoseThatCameTogetherTheShortestStartsFirst) {
  Simulation simulation({.num_blocks = 128, .scheduler = {.max_num_seqs = 1}});
  for (const int32_t n : {40, 8, 24, 4}) {
    simulation.Add({.prompt = Prompt(n, 100 * n), .max_tokens = 1});
    simulation.now += absl::Milliseconds(30);
  }
  EXPECT_EQ(StartOrder(simulation, 4), (std::vector<SequenceId>{4, 2, 3, 1}));
}

TEST(StartOrderTest, WhatIsCachedMakesAPromptShort) {
  Simulation simulation({.num_blocks = 128, .scheduler = {.max_num_seqs = 1}});
  simulation.Add({.prompt = Prompt(100, 0), .max_tokens = 1});
  simulation.Run();
  simulation.Add({.prompt = Prompt(8, 500), .max_tokens = 1});
  const SequenceId cached = simulation.Add({.prompt = Prompt(100, 0), .max_tokens = 1});
  simulation.Step();
  EXPECT_TRUE(simulation.Planned(cached));
  simulation.Run();
}

TEST(StartOrderTest, AShorterOnePassesNobodyOfAnotherTimeTenantPriorityOrDeadline) {
  const absl::Time t = absl::UnixEpoch() + absl::Hours(1);
  const RequestSpec plain{.prompt = Prompt(40, 0), .max_tokens = 1, .deadline = t};
  for (const bool later : {false, true}) {
    Simulation simulation({.num_blocks = 128, .scheduler = {.max_num_seqs = 1}});
    simulation.Add(plain);
    RequestSpec other = plain;
    other.prompt = Prompt(4, 500);
    if (later) {
      simulation.now += kTogether + absl::Milliseconds(1);
    } else {
      other.deadline = t + kTogether + absl::Milliseconds(1);
    }
    simulation.Add(other);
    other.priority = -1;
    simulation.Add(other);
    RequestSpec stranger = plain;
    stranger.prompt = Prompt(4, 600);
    stranger.tenant = "another";
    simulation.Add(stranger);
    // Request 1 starts first. After that, the tenant of request 4 (`stranger`) has been served
    // least, so request 4 starts next.
    EXPECT_EQ(StartOrder(simulation, 4), (std::vector<SequenceId>{1, 4, 2, 3}));
  }
}

// Returns how many small requests overtake an older, large request. The large request needs 20 of
// 24 blocks, and arrives while another request runs. Then, before each step, the clock advances by
// `between` and a small request arrives.
int StartsBeforeTheLargeOne(absl::Duration between) {
  Simulation simulation(
      {.num_blocks = 24, .scheduler = {.headroom_blocks = 0, .starts_per_oldest = 1000}});
  simulation.Add({.prompt = Prompt(30, 500), .max_tokens = 4});
  simulation.Step();
  const SequenceId large = simulation.Add({.prompt = Prompt(80, 1000), .max_tokens = 1});
  int num_before = 0;
  for (int i = 0; i < 100; ++i) {
    simulation.now += between;
    simulation.Add({.prompt = Prompt(2, 2000 + 10 * i), .max_tokens = 6});
    simulation.Step();
    if (simulation.Planned(large)) return num_before;
    for (const SequenceId id : simulation.planned()) {
      num_before += simulation.Entry(id).first_index == 0 ? 1 : 0;
    }
  }
  return 100;
}

TEST(StartOrderTest, WhatDoesNotFitIsPassedByNobodyThatCameLater) {
  EXPECT_EQ(StartsBeforeTheLargeOne(2 * kTogether), 0);
}

TEST(StartOrderTest, NobodyIsPassedByMoreThanEightShorterOnes) {
  EXPECT_EQ(StartsBeforeTheLargeOne(absl::ZeroDuration()), kMostPasses);
}

TEST(StartOrderTest, WhatLacksRowsIsPassedByEightOfItsTenantAndNoMore) {
  Simulation simulation(
      {.num_blocks = 256,
       .scheduler = {
           .max_num_batched_tokens = 64, .max_logit_rows = 4, .starts_per_oldest = 1000}});
  // The first request takes all rows of each step for 50 steps.
  simulation.Add({.prompt = Prompt(200, 0), .max_tokens = 1, .prompt_logprobs = true});
  simulation.Step();
  const SequenceId lacking =
      simulation.Add({.prompt = Prompt(8, 500), .max_tokens = 1, .prompt_logprobs = true});
  int num_before = 0, num_steps = 0;
  while (true) {
    simulation.now += 2 * kTogether;
    simulation.Add({.prompt = Prompt(2, 1000 + 10 * num_steps), .max_tokens = 1});
    ASSERT_TRUE(simulation.Step());
    if (simulation.Planned(lacking)) break;
    ++num_steps;
    for (const SequenceId id : simulation.planned()) num_before += id > lacking ? 1 : 0;
  }
  EXPECT_GT(num_steps, 3 * kMostPasses);
  EXPECT_EQ(num_before, kMostPasses);
  simulation.Run();
}

TEST(StartOrderTest, TheOldestPromptGetsItsShareBesideHigherPriorities) {
  Simulation simulation(
      {.num_blocks = 1024,
       .scheduler = {
           .max_num_batched_tokens = 64, .max_logit_rows = 16, .starts_per_oldest = 100}});
  // The limit on logit rows keeps the chunks of this request short, so that the urgent request
  // starts beside it.
  const SequenceId old =
      simulation.Add({.prompt = Prompt(600, 0), .max_tokens = 1, .prompt_logprobs = true});
  simulation.Step();
  const SequenceId urgent =
      simulation.Add({.prompt = Prompt(3000, 1000), .max_tokens = 1, .priority = 100});
  simulation.Step();
  for (int i = 0; i < 30; ++i) {
    simulation.Step();
    EXPECT_EQ(simulation.Entry(urgent).num_tokens, 64 - 64 / 8);
    ASSERT_TRUE(simulation.Planned(old));
    EXPECT_EQ(simulation.Entry(old).num_tokens, 64 / 8);
  }
  simulation.Run();
}

TEST(StartOrderTest, TenantsAreServedEquallyByTokensWhateverTheirPromptsLengths) {
  Simulation simulation(
      {.num_blocks = 2048, .scheduler = {.max_num_seqs = 1, .starts_per_oldest = 100000}});
  for (int i = 0; i < 10; ++i) {
    simulation.Add({.prompt = Prompt(1000, 2000 * i), .max_tokens = 1, .tenant = "long"});
  }
  for (int i = 0; i < 600; ++i) {
    simulation.Add({.prompt = Prompt(10, 50000 + 20 * i), .max_tokens = 1, .tenant = "short"});
  }
  std::map<bool, int64_t> served;  // served tokens, by whether the tenant is "long"
  while (served[true] < 5000) {
    ASSERT_TRUE(simulation.Step());
    for (size_t i = 0; i < simulation.planned().size(); ++i) {
      served[simulation.planned()[i] <= 10] += simulation.last_plan().entries[i].num_tokens;
    }
    // The test counts computed tokens, although the scheduler charges a decode like two prompt
    // tokens. There are no decodes here: each request draws its only token from the last row of its
    // prompt.
    EXPECT_LE(std::abs(served[true] - served[false]), 1000 + 10);
  }
}

}  // namespace
}  // namespace quire::engine
