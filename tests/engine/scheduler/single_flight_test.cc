// Tests that waiting sequences follow those that compute the same prefix, so that no prefix is
// computed twice at the same time, and that nobody is lost, late or told of others by it.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <rapidcheck.h>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "engine/scheduler/scheduler.h"
#include "tests/engine/scheduler/simulation.h"

namespace quire::engine {
namespace {

// Returns a prompt that begins with Prompt(shared, first) and goes on with `own` tokens of its own.
std::vector<int32_t> Forked(int32_t shared, int32_t first, int32_t own, int32_t own_first) {
  std::vector<int32_t> tokens = Prompt(shared, first);
  const std::vector<int32_t> tail = Prompt(own, own_first);
  tokens.insert(tokens.end(), tail.begin(), tail.end());
  return tokens;
}

// Returns the number of sequences that have followed, by FollowEnd.
std::array<int64_t, 3> Followers(const Simulation& simulation) {
  return const_cast<Simulation&>(simulation).scheduler().stats().followers;
}

// Sixteen equal prompts of 2,048 tokens arrive together. Returns the prompt tokens computed.
int64_t ComputedOfEqualPrompts(int32_t depth, int32_t least_followed_blocks) {
  Simulation simulation({.num_blocks = 4096,
                         .block_size = 16,
                         .scheduler = {.max_num_batched_tokens = 8192,
                                       .pipeline_depth = depth,
                                       .least_followed_blocks = least_followed_blocks}});
  for (int i = 0; i < 16; ++i) {
    simulation.Add({.prompt = Prompt(2048, 0), .max_tokens = 4, .seed = static_cast<uint64_t>(i)});
  }
  simulation.Run();
  EXPECT_EQ(simulation.ended().size(), 16u);
  return simulation.scheduler().stats().prompt_tokens_computed;
}

TEST(SingleFlightTest, EqualPromptsThatArriveTogetherAreComputedOnce) {
  for (const int32_t depth : {0, 1}) {
    // The last token of a prompt is always computed.
    EXPECT_EQ(ComputedOfEqualPrompts(depth, 2), 2048 + 15);
    const int64_t before = ComputedOfEqualPrompts(depth, 0);
    EXPECT_GE(before, 4 * 2048);
    RecordProperty(depth == 0 ? "without" : "without_in_a_pipeline", static_cast<int>(before));
  }
}

TEST(SingleFlightTest, AFollowerReturnsWhenWhatItSharesIsThere) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.pipeline_depth = 1}});
  const SequenceId leader = simulation.Add({.prompt = Prompt(48, 0), .max_tokens = 4});
  simulation.now += absl::Seconds(1);  // shorter ones that come now do not start first
  const SequenceId follower = simulation.Add({.prompt = Forked(22, 0, 5, 500), .max_tokens = 2});
  simulation.Step();
  EXPECT_EQ(simulation.planned(), std::vector{leader});
  simulation.Step();
  EXPECT_EQ(simulation.planned(), std::vector{leader}) << "its prompt was still in flight";
  EXPECT_EQ(Followers(simulation), (std::array<int64_t, 3>{1, 0, 0}));
  simulation.Step();
  EXPECT_EQ(simulation.Entry(follower).first_index, 22) << "to the token";
  simulation.Run();
}

TEST(SingleFlightTest, OthersPassThoseThatFollow) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.max_num_batched_tokens = 40}});
  std::vector<SequenceId> ids;
  for (const std::vector<int32_t>& prompt : {Prompt(24, 0), Prompt(24, 0), Prompt(10, 100)}) {
    ids.push_back(simulation.Add({.prompt = prompt, .max_tokens = 2}));
    simulation.now += absl::Seconds(1);
  }
  simulation.Step();
  EXPECT_EQ(simulation.planned(), (std::vector{ids[0], ids[2]}));
  simulation.Step();
  EXPECT_EQ(simulation.Entry(ids[1]).num_tokens, 1);
  simulation.Run();
}

TEST(SingleFlightTest, LessThanTwoBlocksAreNotWorthTheWait) {
  for (const int32_t shared : {7, 8}) {
    Simulation simulation({.num_blocks = 64});
    simulation.Add({.prompt = Forked(shared, 0, 12, 100), .max_tokens = 2});
    const SequenceId second =
        simulation.Add({.prompt = Forked(shared, 0, 12, 200), .max_tokens = 2});
    simulation.Step();
    EXPECT_EQ(simulation.Planned(second), shared == 7);
    simulation.Run();
  }
  // Nor are they if the cache has the others, or the leader ends with them.
  for (const int32_t shared : {15, 16}) {
    Simulation simulation({.num_blocks = 64});
    simulation.Add({.prompt = Prompt(8, 0), .max_tokens = 1});
    simulation.Run();
    simulation.Add({.prompt = Forked(shared, 0, 12, 100), .max_tokens = 2});
    const SequenceId second =
        simulation.Add({.prompt = Forked(shared, 0, 12, 200), .max_tokens = 2});
    simulation.Step();
    EXPECT_EQ(simulation.Planned(second), shared == 15);
    simulation.Run();
  }
  for (const int32_t whole : {7, 8}) {
    Simulation simulation({.num_blocks = 64});
    simulation.Add({.prompt = Prompt(whole, 0), .max_tokens = 2});
    const SequenceId second = simulation.Add({.prompt = Prompt(20, 0), .max_tokens = 2});
    simulation.Step();
    EXPECT_EQ(simulation.Planned(second), whole == 7);
    simulation.Run();
  }
}

TEST(SingleFlightTest, WhoFollowedSoOftenComputesItself) {
  constexpr int kMostFollows = 64;
  Simulation simulation(
      {.num_blocks = 4096,
       .scheduler = {.max_num_seqs = 128, .max_num_batched_tokens = 8192, .pipeline_depth = 1}});
  std::vector<SequenceId> ids;
  for (int i = 0; i < kMostFollows + 2; ++i) {
    ids.push_back(simulation.Add({.prompt = Prompt(24, 0), .max_tokens = 2}));
  }
  for (int i = 0; i < kMostFollows; ++i) {
    simulation.Step();
    ASSERT_EQ(simulation.planned(), std::vector{ids[i]}) << "the others follow it";
    ASSERT_TRUE(simulation.scheduler().Cancel(ids[i]).ok());
  }
  simulation.Step();
  EXPECT_EQ(simulation.planned(), (std::vector{ids[kMostFollows], ids[kMostFollows + 1]}));
  simulation.Run();
}

TEST(SingleFlightTest, AllTokensUpToTheSharedOnesMustBeEqual) {
  Simulation simulation({.num_blocks = 64});
  simulation.Add({.prompt = Prompt(8, 0), .max_tokens = 1});
  simulation.Run();
  // The first computes its last 20 tokens, at the places where the second has the same ones.
  simulation.Add({.prompt = Forked(8, 0, 20, 100), .max_tokens = 2});
  simulation.Add({.prompt = Forked(8, 50, 20, 100), .max_tokens = 2});
  simulation.Step();
  EXPECT_EQ(simulation.planned().size(), 2u);
  simulation.Run();
}

TEST(SingleFlightTest, NobodyFollowsAnotherTenantOrSaltOrOneThatSharesNothing) {
  const std::vector<int32_t> prompt = Prompt(24, 0);
  const std::vector<RequestSpec> leaders = {
      {.prompt = prompt, .max_tokens = 2, .tenant = "a"},
      {.prompt = prompt, .max_tokens = 2, .tenant = "b", .salt = "s"},
      {.prompt = prompt, .max_tokens = 2, .tenant = "b", .bypass_write = true},
      {.prompt = prompt, .max_tokens = 2, .tenant = "b", .bypass_read = true},
      {.prompt = prompt, .max_tokens = 2, .tenant = "b", .prompt_logprobs = true}};
  for (const RequestSpec& spec : leaders) {
    Simulation simulation({.num_blocks = 64});
    simulation.Add(spec);
    simulation.Add({.prompt = prompt, .max_tokens = 2, .tenant = "b"});
    simulation.Step();
    EXPECT_EQ(simulation.planned().size(), 2u);
    simulation.Run();
    EXPECT_EQ(Followers(simulation), (std::array<int64_t, 3>{}));
  }
}

TEST(SingleFlightTest, AfterACancelTheFirstFollowerLeadsWithWhatWasComputed) {
  Simulation simulation(
      {.num_blocks = 64, .scheduler = {.max_num_batched_tokens = 20, .pipeline_depth = 1}});
  std::vector<SequenceId> ids;
  for (int i = 0; i < 4; ++i) {
    ids.push_back(simulation.Add({.prompt = Prompt(29, 0), .max_tokens = 2}));
  }
  simulation.Step();
  simulation.Step();  // plans the leader's last nine tokens, and completes its first twenty
  EXPECT_TRUE(simulation.scheduler().Cancel(ids[3]).ok());
  EXPECT_EQ(Followers(simulation), (std::array<int64_t, 3>{0, 0, 1})) << "it followed";
  EXPECT_TRUE(simulation.scheduler().Cancel(ids[0]).ok());
  EXPECT_EQ(Followers(simulation), (std::array<int64_t, 3>{0, 2, 1}));
  simulation.Step();
  EXPECT_EQ(simulation.planned(), std::vector{ids[1]}) << "the first leads, the second follows";
  EXPECT_EQ(simulation.Entry(ids[1]).first_index, 20);
  simulation.Run();
  EXPECT_EQ(Followers(simulation), (std::array<int64_t, 3>{1, 2, 1}));
  EXPECT_EQ(simulation.ended().at(ids[2]).sequence.num_cached, 28);
}

TEST(SingleFlightTest, AStalledLeaderHoldsNobodyUp) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.max_num_batched_tokens = 12}});
  const SequenceId leader = simulation.Add({.prompt = Prompt(35, 0), .max_tokens = 2});
  const SequenceId follower = simulation.Add({.prompt = Prompt(35, 0), .max_tokens = 2});
  simulation.Step();
  simulation.sink(leader).room = 0;
  while (!simulation.ended().contains(follower)) ASSERT_TRUE(simulation.Step());
  EXPECT_EQ(simulation.ended().at(follower).sequence.num_cached, 24);
  simulation.sink(leader).room = 4;
  simulation.Run();
}

TEST(SingleFlightTest, AfterAPreemptionFollowersReturn) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.max_num_seqs = 1, .pipeline_depth = 1}});
  const SequenceId leader = simulation.Add({.prompt = Prompt(24, 0), .max_tokens = 4});
  const SequenceId follower = simulation.Add({.prompt = Prompt(24, 0), .max_tokens = 4});
  const SequenceId other = simulation.Add({.prompt = Prompt(24, 100), .max_tokens = 4});
  simulation.Step();
  simulation.sink(leader).room = 0;
  simulation.Step();
  EXPECT_EQ(simulation.planned(), std::vector{other}) << "in the place of the leader";
  EXPECT_EQ(Followers(simulation), (std::array<int64_t, 3>{0, 1, 0}));
  simulation.sink(leader).room = 4;
  simulation.Run();
  EXPECT_EQ(simulation.ended().at(leader).sequence.num_preemptions, 1);
  EXPECT_EQ(simulation.ended().at(follower).cause, EndCause::kFinished);
}

// A load is the request that computes a named prefix.
TEST(SingleFlightTest, UsersOfAPrefixFollowItsLoad) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.max_num_batched_tokens = 12}});
  const SequenceId load =
      simulation.Add({.prompt = Prompt(30, 0), .max_tokens = 1, .tenant = "a", .pins = 7});
  const SequenceId user =
      simulation.Add({.prompt = Prompt(36, 0), .max_tokens = 2, .tenant = "a", .on = 7});
  while (!simulation.ended().contains(load)) ASSERT_TRUE(simulation.Step());
  EXPECT_EQ(Followers(simulation), (std::array<int64_t, 3>{1, 0, 0}));
  while (simulation.Step()) {
  }
  EXPECT_EQ(simulation.ended().at(user).sequence.num_cached, 30);
  simulation.scheduler().Unpin(7);
  simulation.Run();
}

TEST(SingleFlightTest, UsersOfAPrefixReturnWhenItsLoadEnds) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.pipeline_depth = 1}});
  const SequenceId load =
      simulation.Add({.prompt = Prompt(30, 0), .max_tokens = 1, .tenant = "a", .pins = 7});
  const SequenceId user =
      simulation.Add({.prompt = Prompt(36, 0), .max_tokens = 2, .tenant = "a", .on = 7});
  simulation.Step();
  EXPECT_TRUE(simulation.scheduler().Cancel(load).ok());
  simulation.Run();
  EXPECT_EQ(Followers(simulation), (std::array<int64_t, 3>{0, 1, 0}));
  EXPECT_EQ(simulation.ended().at(user).sequence.num_cached, 0) << "the prefix is gone";
}

TEST(SingleFlightTest, OnlyItsOwnTenantWaitsForALoadThatWaits) {
  for (const bool same_tenant : {false, true}) {
    Simulation simulation({.num_blocks = 64, .scheduler = {.max_num_seqs = 3}});
    const TenantLimits one{.max_running = 1};
    const SequenceId running =
        simulation.Add({.prompt = Prompt(4, 100), .max_tokens = 30, .tenant = "a", .limits = one});
    simulation.Step();
    const SequenceId load = simulation.Add({.prompt = Prompt(24, 0),
                                            .max_tokens = 1,
                                            .tenant = same_tenant ? "b" : "a",
                                            .limits = one,
                                            .pins = 7});
    simulation.sink(load).room = same_tenant ? 0 : 1;
    const SequenceId user =
        simulation.Add({.prompt = Prompt(30, 0), .max_tokens = 2, .tenant = "b", .on = 7});
    simulation.Step();
    EXPECT_FALSE(simulation.Planned(load));
    EXPECT_EQ(simulation.Planned(user), !same_tenant);
    simulation.sink(load).room = 1;
    simulation.scheduler().Reconsider(load, simulation.now);
    for (const SequenceId id : {running, load, user}) {
      while (!simulation.ended().contains(id)) ASSERT_TRUE(simulation.Step());
    }
    simulation.scheduler().Unpin(7);
    simulation.Run();
  }
}

TEST(SingleFlightTest, ALoadThatWaitsStartsInTheTurnOfItsFirstUser) {
  for (const int32_t depth : {0, 1}) {
    for (const bool same_tenant : {false, true}) {
      for (const int32_t starts_per_oldest : {1, 8}) {
        Simulation simulation(
            {.num_blocks = 64,
             .scheduler = {.pipeline_depth = depth, .starts_per_oldest = starts_per_oldest}});
        // Both users are before the load, and neither follows it while it waits.
        std::vector<SequenceId> users;
        for (int32_t i = 0; i < 2; ++i) {
          users.push_back(simulation.Add({.prompt = Forked(30, 0, 6, 100 * (1 + i)),
                                          .max_tokens = 2,
                                          .priority = 1,
                                          .tenant = same_tenant ? "a" : "b",
                                          .on = 7,
                                          .owner = "a"}));
        }
        simulation.Add({.prompt = Prompt(30, 0), .max_tokens = 1, .tenant = "a", .pins = 7});
        while (std::ranges::any_of(
            users, [&](SequenceId id) { return !simulation.ended().contains(id); })) {
          ASSERT_TRUE(simulation.Step());
        }
        for (const SequenceId user : users) {
          EXPECT_EQ(simulation.ended().at(user).sequence.num_cached, 30);
        }
        EXPECT_EQ(simulation.scheduler().stats().prompt_tokens_computed, 30 + 2 * 6);
        simulation.scheduler().Unpin(7);
        simulation.Run();
      }
    }
  }
}

TEST(SingleFlightTest, ALoadWhoseTenantHasNoBlocksLeftTakesNoTurn) {
  Simulation simulation({.num_blocks = 64});
  const TenantLimits few{.max_blocks = 4};
  const SequenceId running =
      simulation.Add({.prompt = Prompt(12, 100), .max_tokens = 4, .tenant = "a", .limits = few});
  simulation.Step();
  const SequenceId user =
      simulation.Add({.prompt = Prompt(30, 0), .max_tokens = 2, .tenant = "b", .on = 7});
  const SequenceId load = simulation.Add(
      {.prompt = Prompt(24, 0), .max_tokens = 1, .tenant = "a", .limits = few, .pins = 7});
  simulation.Step();
  EXPECT_FALSE(simulation.Planned(load));
  EXPECT_TRUE(simulation.Planned(user)) << "it computes the tokens itself";
  while (!simulation.ended().contains(running)) ASSERT_TRUE(simulation.Step());
  EXPECT_TRUE(simulation.scheduler().Cancel(load).ok());
  simulation.Run();
}

struct FlightTotals {
  int64_t preemptions = 0;
  int64_t cancelled = 0;
  std::array<int64_t, 3> followers{};
};

// Requests of random tenants, each with one of some shared prefixes, come at random, and with
// `disturb` stall and are cancelled. The cache is large, so no prefix is lost. No token of a prefix
// is computed twice in a tenant, apart from pieces that are too small to follow, and apart from
// those that a step in flight loses when it is disturbed, or when the start of another tenant's
// sequence preempts one in it. `seed` decides all random choices.
void RunFlightWorld(uint32_t seed, int32_t depth, bool disturb, FlightTotals& totals) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const int32_t block_size = pick(1, 6);
  const int32_t least_blocks = pick(1, 2);
  const int32_t max_num_seqs = pick(1, 6);
  Simulation simulation({.num_blocks = 4000,
                         .block_size = block_size,
                         .scheduler = {.max_num_seqs = max_num_seqs,
                                       .max_num_batched_tokens = max_num_seqs + pick(0, 60),
                                       .pipeline_depth = depth,
                                       .starts_per_oldest = pick(1, 8),
                                       .least_followed_blocks = least_blocks}});
  struct Added {
    std::string tenant;
    int prefix = 0;
    int32_t shared = 0;  // tokens of the prefix at the beginning of its prompt
    int64_t again = 0;   // those that it computed after another
  };
  std::map<SequenceId, Added> added;
  std::map<std::tuple<std::string, int, int64_t>, int> computed;  // by tenant, prefix and index
  const int num_requests = pick(1, 30);
  const int num_prefixes = pick(1, 3);
  for (int step = 0; std::ssize(added) < num_requests || simulation.scheduler().HasWork(); ++step) {
    ASSERT_LT(step, 5000) << "seed " << seed;
    for (int i = pick(0, 2) > 0 ? 0 : pick(1, 6); i > 0 && std::ssize(added) < num_requests; --i) {
      const int prefix = pick(0, num_prefixes - 1);
      Added one{.tenant = pick(0, 2) == 0 ? "b" : "a", .prefix = prefix};
      one.shared = block_size * (2 + 3 * pick(0, 3));
      // The tokens of a prefix are unlike all others.
      RequestSpec spec{.prompt = Forked(one.shared, 1000 * prefix, pick(1, 9),
                                        10000 + 10 * static_cast<int>(added.size())),
                       .max_tokens = pick(1, 6),
                       .priority = pick(-1, 1),
                       .tenant = one.tenant};
      added.emplace(simulation.Add(spec), one);
    }
    for (int i = disturb && !added.empty() ? 3 * depth + 1 : 0; i > 0; --i) {
      const SequenceId id = std::next(added.begin(), pick(0, std::ssize(added) - 1))->first;
      const int what = pick(0, 9);
      if (what == 0) simulation.Cancel(id);
      if (what == 1) (void)simulation.scheduler().Cancel(id);
      // A reader that is stuck when its prompt was computed: whoever needs its place preempts it.
      if (what == 2 && simulation.Planned(id) && simulation.Entry(id).num_samples > 0) {
        simulation.sink(id).room = 0;
      }
      if (what > 6) simulation.sink(id).room = 100;
    }
    simulation.now += absl::Milliseconds(1);
    const bool any = simulation.Step();
    for (const SequenceId id : simulation.planned()) {
      Added& one = added.at(id);
      const StepPlanEntry entry = simulation.Entry(id);
      const int64_t end = std::min<int64_t>(one.shared, entry.first_index + entry.num_tokens);
      for (int64_t i = entry.first_index; any && i < end; ++i) {
        one.again += computed[std::tuple(one.tenant, one.prefix, i)]++ > 0 ? 1 : 0;
      }
      const bool may_lose = disturb || simulation.scheduler().stats().num_preemptions > 0;
      ASSERT_TRUE(one.again < least_blocks * block_size || (depth > 0 && may_lose))
          << "seed " << seed << ", step " << step << ": sequence " << id << " computes tokens of "
          << "prefix " << one.prefix << " again";
    }
    if (!any && simulation.scheduler().HasWork()) {
      // Only stalled sequences are left.
      ASSERT_LT(simulation.scheduler().NextWakeup(), absl::InfiniteFuture()) << "seed " << seed;
      simulation.now += absl::Seconds(31);
    }
  }
  EXPECT_EQ(simulation.ended().size(), added.size()) << "seed " << seed;
  for (const auto& [id, end] : simulation.ended()) {
    totals.cancelled += end.cause == EndCause::kCancelled ? 1 : 0;
  }
  totals.preemptions += simulation.scheduler().stats().num_preemptions;
  for (size_t i = 0; i < totals.followers.size(); ++i) {
    totals.followers[i] += Followers(simulation)[i];
  }
}

void RunFlightWorld(uint32_t seed, int kind, FlightTotals& totals) {
  RunFlightWorld(seed, kind % 3 == 0 ? 0 : 1, kind % 3 < 2, totals);
}

TEST(SingleFlightPropertyTest, ASharedPrefixIsComputedOnceAndEveryRequestEnds) {
  FlightTotals totals;
  const auto world = rc::gen::resize(rc::kNominalSize, rc::gen::inRange<uint32_t>(0, 1u << 31));
  const char* const rounds = std::getenv("QUIRE_SINGLE_FLIGHT_WORLDS");
  const int num_worlds = rounds == nullptr ? 1 : std::atoi(rounds);
  int kind = 0;
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < num_worlds; ++i, ++kind) RunFlightWorld(*world, kind, totals);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(SingleFlightPropertyTest, WorldsHaveEveryEndOfFollowing) {
  FlightTotals totals;
  for (int seed = 0; seed < 40; ++seed) RunFlightWorld(seed, seed, totals);
  EXPECT_GT(totals.preemptions, 0);
  EXPECT_GT(totals.cancelled, 0);
  for (const int64_t number : totals.followers) EXPECT_GT(number, 0);
}

}  // namespace
}  // namespace quire::engine
