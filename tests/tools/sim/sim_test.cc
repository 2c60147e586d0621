// The parts of quire-sim, on small traces.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/test_data.h"
#include "tools/sim/bounds.h"
#include "tools/sim/cache_policies.h"
#include "tools/sim/cost_model.h"
#include "tools/sim/fleet.h"
#include "tools/sim/random.h"
#include "tools/sim/report.h"
#include "tools/sim/router.h"
#include "tools/sim/sim_command.h"
#include "tools/sim/trace.h"

namespace quire::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string WriteTemp(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/sim_test_" + name;
  std::ofstream(path) << text;
  return path;
}

TraceRequest Request(std::vector<uint64_t> blocks, double arrival = 0.0, int32_t block_tokens = 4) {
  return {.arrival_seconds = arrival,
          .prompt_tokens = std::ssize(blocks) * block_tokens,
          .output_tokens = 4,
          .blocks = std::move(blocks)};
}

TEST(TraceTest, EqualBlocksHaveEqualTokens) {
  TraceRequest a = Request({1, 2, 3}), b = Request({1, 2, 4});
  b.prompt_tokens = 10;
  const std::vector<int32_t> tokens_a = MakeTokens(a, 4), tokens_b = MakeTokens(b, 4);
  ASSERT_EQ(tokens_a.size(), 12u);
  ASSERT_EQ(tokens_b.size(), 10u);
  EXPECT_TRUE(std::equal(tokens_a.begin(), tokens_a.begin() + 8, tokens_b.begin()));
  EXPECT_NE(tokens_a[8], tokens_b[8]);
  EXPECT_GE(*std::ranges::min_element(tokens_a), 0);
}

TEST(TraceTest, ReadsMooncake) {
  const std::string path = WriteTemp(
      "m.jsonl",
      "{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 7, \"hash_ids\": [0, 1]}\n\n"
      "{\"timestamp\": 1500, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": [0]}\n");
  auto trace = OpenMooncake(path);
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto requests = ReadAll(**trace);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_THAT((*requests)[0].blocks, ElementsAre(0, 1));
  EXPECT_EQ((*requests)[1].arrival_seconds, 1.5);
  EXPECT_EQ((*requests)[1].output_tokens, 1);
}

TEST(TraceTest, AnErrorNamesTheLineAndTheCure) {
  for (const char* line :
       {"nonsense", "[]", "{\"timestamp\": 0}",
        "{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": 16777217, \"output_length\": 1, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [-1]}",
        "{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [1]}"}) {
    auto trace = OpenMooncake(WriteTemp("bad.jsonl", std::string(line) + "\n"));
    ASSERT_TRUE(trace.ok());
    const auto requests = ReadAll(**trace);
    EXPECT_THAT(requests.status().ToString(), HasSubstr("bad.jsonl:1: ")) << line;
    EXPECT_THAT(requests.status().ToString(), HasSubstr("want")) << line;
  }
  EXPECT_FALSE(OpenMooncake("/no/such/file.jsonl").ok());
}

TEST(TraceTest, ReadsAzureAsConversations) {
  std::string text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";
  for (int i = 0; i < 200; ++i) {
    char line[80];
    std::snprintf(line, sizeof line, "2023-11-16 18:%02d:%02d.5000000,%d,%d\n", i / 4 % 60,
                  i % 4 * 15, 200 + i * 40, 30);
    text += line;
  }
  auto trace = OpenAzure(WriteTemp("a.csv", text), 0);
  ASSERT_TRUE(trace.ok());
  const auto requests = ReadAll(**trace);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 200u);
  EXPECT_EQ((*requests)[4].arrival_seconds, 60.0);
  const double rate = InfiniteHits(*requests).rate();
  EXPECT_GT(rate, 0.1);
  EXPECT_LT(rate, 0.9);
}

TEST(TraceTest, AzureWantsThreeColumns) {
  auto trace = OpenAzure(WriteTemp("bad.csv", "2023-11-16 18:00:00.1,5\n"), 0);
  ASSERT_TRUE(trace.ok());
  EXPECT_THAT(ReadAll(**trace).status().ToString(), HasSubstr("bad.csv:1: want TIMESTAMP"));
}

TEST(TraceTest, GeneratesConversations) {
  TreeConfig config{.num_requests = 5000, .rate = 10.0, .num_tenants = 3};
  const auto requests = ReadAll(*MakeTree(config));
  ASSERT_TRUE(requests.ok());
  ASSERT_EQ(requests->size(), 5000u);
  double last = 0.0;
  std::set<int32_t> tenants;
  for (const TraceRequest& request : *requests) {
    EXPECT_GE(request.arrival_seconds, last);
    last = request.arrival_seconds;
    tenants.insert(request.tenant);
    ASSERT_EQ(std::ssize(request.blocks), (request.prompt_tokens + 63) / 64);
  }
  EXPECT_EQ(tenants.size(), 3u);
  // The first turns come alone, so the rate is lower at first.
  EXPECT_NEAR(5000 / last, 9.0, 2.0);
  EXPECT_GT(InfiniteHits(*requests).rate(), 0.5);
  const auto again = ReadAll(*MakeTree(config));
  EXPECT_EQ(again->back().blocks, requests->back().blocks);
  config.seed = 1;
  EXPECT_NE(ReadAll(*MakeTree(config))->back().blocks, requests->back().blocks);
}

TEST(TraceTest, BurstsKeepTheMeanRate) {
  const auto variance = [](double burst) {
    const auto requests = ReadAll(
        *MakeTree({.num_requests = 20000, .rate = 10.0, .burst = burst, .continue_share = 0.0}));
    std::vector<double> counts(static_cast<size_t>(requests->back().arrival_seconds / 30.0) + 1);
    for (const TraceRequest& r : *requests) ++counts[static_cast<size_t>(r.arrival_seconds / 30.0)];
    EXPECT_NEAR(20000 / requests->back().arrival_seconds, 10.0, 1.0);
    double sum = 0.0;
    for (const double count : counts) sum += (count - 300.0) * (count - 300.0);
    return sum / static_cast<double>(counts.size());
  };
  EXPECT_GT(variance(5.0), 10 * variance(1.0));
}

// Searches all choices of eviction for the most hits of a cache with this many blocks. Any block
// may be evicted or not cached; a hit needs only the block itself.
int64_t MostHits(const std::vector<uint64_t>& uses, size_t i, std::set<uint64_t> cached,
                 size_t capacity) {
  if (i == uses.size()) return 0;
  if (cached.contains(uses[i])) return 1 + MostHits(uses, i + 1, cached, capacity);
  int64_t most = MostHits(uses, i + 1, cached, capacity);  // bypass
  if (cached.size() < capacity) {
    cached.insert(uses[i]);
    return std::max(most, MostHits(uses, i + 1, cached, capacity));
  }
  for (const uint64_t victim : cached) {
    std::set<uint64_t> next = cached;
    next.erase(victim);
    next.insert(uses[i]);
    most = std::max(most, MostHits(uses, i + 1, std::move(next), capacity));
  }
  return most;
}

TEST(BoundsTest, MinIsTheBestOfAllChoices) {
  Random random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<TraceRequest> trace;
    std::vector<uint64_t> uses;
    for (int r = 0; r < 5; ++r) {
      std::vector<uint64_t> blocks;
      uint64_t id = 1;  // a path in a binary tree
      for (uint64_t depth = random.Bits() % 3 + 1; depth > 0; --depth) {
        id = 2 * id + random.Bits() % 2;
        blocks.push_back(id);
        uses.push_back(id);
      }
      trace.push_back(Request(blocks));
    }
    for (const int64_t capacity : {1, 2, 3}) {
      EXPECT_EQ(MinHits(trace, capacity).hits,
                MostHits(uses, 0, {}, static_cast<size_t>(capacity)));
    }
    EXPECT_EQ(MinHits(trace, 100).hits, InfiniteHits(trace).hits);
  }
}

TEST(CachePoliciesTest, NoneExceedsTheBounds) {
  const auto requests = ReadAll(*MakeTree({.num_requests = 1500}));
  ASSERT_TRUE(requests.ok());
  for (const int32_t capacity : {64, 512, 1 << 18}) {
    const int64_t min = MinHits(*requests, capacity).hits;
    for (const std::string& policy : CachePolicies()) {
      const auto cache = MakeCache(policy, capacity, 64);
      ASSERT_NE(cache, nullptr) << policy;
      int64_t hits = 0;
      for (const TraceRequest& request : *requests) hits += cache->Serve(request);
      EXPECT_LE(hits, min) << policy << ", " << capacity;
      // The engine computes a prompt's last token always, so it shares less of an equal prompt.
      if (capacity == 1 << 18) {
        EXPECT_GT(hits, min * 98 / 100) << policy;
      }
    }
  }
  EXPECT_EQ(MakeCache("fifo", 8, 64), nullptr);
}

TEST(CachePoliciesTest, LruEvictsLeavesOfTheOldestRequest) {
  const auto cache = MakeCache("lru", 4, 4);
  EXPECT_EQ(cache->Serve(Request({1, 2})), 0);
  EXPECT_EQ(cache->Serve(Request({3, 4})), 0);
  EXPECT_EQ(cache->Serve(Request({1, 5})), 1);  // evicts 2, the oldest leaf
  EXPECT_EQ(cache->Serve(Request({3, 4})), 2);
  EXPECT_EQ(cache->Serve(Request({1, 2})), 1);
}

TEST(CostModelTest, FindsThePricesAgain) {
  const CostModel truth = {.step = 3e-3, .decode = 2e-4, .prompt_token = 1e-4, .key = 5e-8};
  std::vector<Measurement> measurements;
  Random random(1);
  for (int i = 0; i < 8; ++i) {
    Work work{.steps = 100 + 900 * random.Uniform(),
              .decodes = 8000 * random.Uniform(),
              .prompt_tokens = 50000 * random.Uniform(),
              .keys = 1e7 * random.Uniform()};
    measurements.push_back({.work = work, .seconds = truth.Seconds(work)});
  }
  const auto fit = FitCostModel(measurements);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->model.step / truth.step, 1.0, 1e-6);
  EXPECT_NEAR(fit->model.decode / truth.decode, 1.0, 1e-6);
  EXPECT_NEAR(fit->model.prompt_token / truth.prompt_token, 1.0, 1e-6);
  EXPECT_NEAR(fit->model.key / truth.key, 1.0, 1e-6);
  EXPECT_LT(fit->worst_error, 1e-6);
  EXPECT_FALSE(FitCostModel({}).ok());
}

TEST(CostModelTest, NoPriceIsNegative) {
  // Steps with more decodes took less time.
  const std::vector<Measurement> measurements = {
      {.work = {.steps = 100, .decodes = 100}, .seconds = 2.0},
      {.work = {.steps = 100, .decodes = 1000}, .seconds = 1.0}};
  const auto fit = FitCostModel(measurements);
  ASSERT_TRUE(fit.ok());
  EXPECT_GE(fit->model.decode, 0.0);
  EXPECT_GT(fit->model.step, 0.0);
}

TEST(CostModelTest, ReadsTheOutputOfBench) {
  const std::string path =
      WriteTemp("bench.json",
                R"({"wall_seconds": 2.0, "num_ok": 10, "prompt_tokens": 1000, "output_tokens": 100,
          "server": {"steps": 50, "generated": 100, "prompt_computed": 900, "recomputed": 5}})");
  const auto m = ReadBench(path);
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->work.steps, 50);
  EXPECT_EQ(m->work.decodes, 90);
  EXPECT_EQ(m->work.prompt_tokens, 905);
  EXPECT_EQ(m->work.keys, 905 * 50 + 90 * 105);
  EXPECT_THAT(ReadBench(WriteTemp("empty.json", "{}")).status().ToString(),
              HasSubstr("quire bench --json"));
}

TEST(RouterTest, FollowsTheRules) {
  std::vector<ReplicaLoad> loads(3);
  const auto make = [](const std::string& name) { return MakeRouter(name, 3, 1, 100); };
  const auto in_turn = make("round_robin");
  for (const size_t expected : {0, 1, 2, 0}) {
    EXPECT_EQ(in_turn->Choose(Request({1}), loads), expected);
  }
  loads[0].num_tokens = loads[2].num_tokens = 5;
  EXPECT_EQ(make("least_loaded")->Choose(Request({1}), loads), 1u);
  loads.assign(3, {});

  const auto key = make("prefix_key");
  const size_t chosen = key->Choose(Request({7, 1}), loads);
  EXPECT_EQ(key->Choose(Request({7, 2}), loads), chosen);
  loads[chosen].num_tokens = 1000;
  EXPECT_NE(key->Choose(Request({7, 3}), loads), chosen) << "its load is bounded";
  loads.assign(3, {});

  const auto aware = make("cache_aware");
  const size_t first = aware->Choose(Request({1, 2, 3}), loads);
  EXPECT_EQ(aware->Choose(Request({1, 9, 9}), loads), first) << "a third matches";
  EXPECT_NE(aware->Choose(Request({1, 8, 8, 8}), loads), first) << "a quarter matches";
  loads[first].num_requests = 64;
  EXPECT_EQ(aware->Choose(Request({1, 2, 3}), loads), first);
  loads[first].num_requests = 65;
  EXPECT_NE(aware->Choose(Request({1, 2, 3}), loads), first) << "too many requests";
  EXPECT_GT(aware->num_known_blocks(), 0);
  EXPECT_EQ(MakeRouter("random", 3, 1, 100), nullptr);
}

FleetResult RunTree(const TreeConfig& tree, const FleetConfig& config) {
  auto result = RunFleet(*MakeTree(tree), config, [](int64_t) {});
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

TEST(FleetTest, ServesAllRequestsOnAVirtualClock) {
  const TreeConfig tree{.num_requests = 400, .rate = 2.0, .num_tenants = 2};
  FleetConfig config{.num_replicas = 2};
  const FleetResult result = RunTree(tree, config);
  EXPECT_EQ(result.num_served + result.num_refused, 400);
  EXPECT_EQ(result.num_refused, 0);
  EXPECT_GT(result.hit_rate(), 0.2);
  EXPECT_GT(result.seconds, 150.0);
  EXPECT_LT(result.real_seconds, result.seconds);
  EXPECT_GT(result.ttft.p50, 0.0);
  EXPECT_LE(result.ttft.p50, result.ttft.p99);
  EXPECT_GT(result.jain, 0.5);
  EXPECT_GE(result.busiest, 1.0);
  const FleetResult again = RunTree(tree, config);
  EXPECT_EQ(again.cached_tokens, result.cached_tokens);
  EXPECT_EQ(again.seconds, result.seconds);
  EXPECT_EQ(again.num_steps, result.num_steps);
}

TEST(FleetTest, ASlowerServerHasLaterTokens) {
  const TreeConfig tree{.num_requests = 200, .rate = 1.0};
  FleetConfig config;
  const FleetResult fast = RunTree(tree, config);
  config.replica.cost.step *= 20;
  const FleetResult slow = RunTree(tree, config);
  EXPECT_GT(slow.tpot.p50, 2 * fast.tpot.p50);
  EXPECT_LE(slow.goodput, fast.goodput);
}

TEST(FleetTest, RefusesWhatDoesNotFit) {
  FleetConfig config;
  config.replica.cache_tokens = 256;
  const FleetResult result = RunTree({.num_requests = 20, .system_tokens = 512}, config);
  EXPECT_EQ(result.num_refused, 20);
  config.router = "random";
  EXPECT_FALSE(RunFleet(*MakeTree({}), config, [](int64_t) {}).ok());
}

TEST(FleetTest, ASmallCacheRecomputes) {
  FleetConfig config;
  config.replica.cache_tokens = 8192;
  const FleetResult result =
      RunTree({.num_requests = 300, .rate = 50.0, .answer_tokens = 400}, config);
  EXPECT_GT(result.num_preemptions, 0);
  EXPECT_GT(result.recomputed_tokens, 0);
  EXPECT_EQ(result.num_served + result.num_refused, 300);
}

FleetResult RunPressure(const std::string& name) {
  FleetConfig config;
  config.replica.cache_tokens = 87376;
  config.replica.max_step_time = absl::Milliseconds(90);
  auto result =
      RunFleet(*MakePressure(name, /*num_light=*/300, /*seed=*/0), config, [](int64_t) {});
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

// A light tenant of equal share beside one that asks for more than the server has.
TEST(PressureTest, ALightTenantWaitsForFewSteps) {
  const TenantResult alone = RunPressure("none").tenants.at(0);
  EXPECT_EQ(alone.ttft_steps.p99, 1);
  for (const std::string name : {"score_flood", "long_answers"}) {
    const FleetResult result = RunPressure(name);
    const TenantResult& heavy = result.tenants.at(0);
    const TenantResult& light = result.tenants.at(1);
    EXPECT_EQ(heavy.num_served, name == "score_flood" ? 30 : 80) << "all end";
    EXPECT_EQ(light.num_served, 300);
    EXPECT_GT(result.num_preemptions, 0);
    EXPECT_GT(heavy.ttft.p99, 30.0) << "there is pressure";
    EXPECT_LE(light.ttft_steps.p99, 3 + 2 * alone.ttft_steps.p99) << name;
    EXPECT_LE(light.ttft.p99, 3 * result.longest_step + 2 * alone.ttft.p99) << name;
    EXPECT_LE(light.longest_gap_steps, 2) << name;
    EXPECT_LE(light.longest_gap, 2 * result.longest_step) << name;
  }
}

TEST(ReportTest, JainsIndex) {
  EXPECT_EQ(JainIndex({}), 1.0);
  EXPECT_EQ(JainIndex({2.0, 2.0}), 1.0);
  EXPECT_EQ(JainIndex({1.0, 0.0, 0.0, 0.0}), 0.25);
}

TEST(ReportTest, Percentiles) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles p = PercentilesOf(values);
  EXPECT_EQ(p.p50, 50.0);
  EXPECT_EQ(p.p95, 95.0);
  EXPECT_EQ(p.p99, 99.0);
  EXPECT_EQ(PercentilesOf({}).p50, 0.0);
  EXPECT_EQ(PercentilesOf({7.0}).p99, 7.0);
}

TEST(ReportTest, PicturesNeedNothingFromOutside) {
  const std::string svg = DrawCurves(
      {.title = "a < b & c", .x_title = "x", .x_labels = {"1"}, .lines = {{"line", {0.5}}}});
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

TEST(ReportTest, DrawsLatencies) {
  FleetResult result;
  result.ttft = {.p50 = 0.1, .p95 = 1.0, .p99 = 1e9};
  result.goodput = 2.5;
  const std::string svg = DrawResults({{"a < b", result}, {"none", {}}}, 2.0);
  for (const char* text : {"a &lt; b", ">100.0<", ">1000.0<", ">2.50<", "</svg>"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

class SimCommandTest : public ::testing::Test {
 protected:
  int Run(const std::vector<std::string>& args) {
    out_.str("");
    err_.str("");
    return RunSim(args, out_, err_);
  }
  std::ostringstream out_, err_;
};

TEST_F(SimCommandTest, ShowsHitsAndDraws) {
  const std::string svg = ::testing::TempDir() + "/sim_test.svg";
  EXPECT_EQ(Run({"hits", "--requests", "300", "--sizes", "0.01,1", "--svg", svg}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("reuse"));
  EXPECT_TRUE(std::filesystem::exists(svg));
}

TEST_F(SimCommandTest, ServesSideBySide) {
  const std::string svg = ::testing::TempDir() + "/sim_test_serve.svg";
  EXPECT_EQ(Run({"serve", "--requests", "100", "--replicas", "2", "--router",
                 "round_robin,cache_aware", "--eviction", "recency,reuse", "--victim",
                 "youngest,cheapest", "--bounds", "--svg", svg}),
            0)
      << err_.str();
  for (const char* text :
       {"round_robin, recency, youngest", "cache_aware, reuse, cheapest", "Belady"}) {
    EXPECT_THAT(out_.str(), HasSubstr(text));
  }
  EXPECT_TRUE(std::filesystem::exists(svg));
}

TEST_F(SimCommandTest, ShowsWhatEachTenantSaw) {
  const std::vector<std::string> args = {"serve", "--pressure", "long_answers", "--requests", "2"};
  EXPECT_EQ(Run(args), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("longest gap ms"));
}

TEST_F(SimCommandTest, RefusesWithTheCure) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "want hits, serve or fit"},
      {{"hits", "trace.txt"}, ".jsonl"},
      {{"hits", "--sizes", "1,x"}, "want numbers such as"},
      {{"hits", "--policies", "fifo"}, "want some of lru"},
      {{"serve", "--rate", "0"}, "--rate"},
      {{"serve", "--continue_share", "1"}, "--continue_share"},
      {{"serve", "--max_num_batched_tokens", "1"}, "--max_num_seqs"},
      {{"serve", "--cache_tokens", "256", "--block_size", "64"}, "--cache_tokens"},
      {{"serve", "--step_seconds", "-1"}, "the times of a step"},
      {{"serve", "--pressure", "flood"}, "want one of score_flood,long_answers,none, got"},
      {{"serve", "--pressure", "none", "t.csv"}, "want no TRACE"},
      {{"fit"}, "--bench"}};
  for (const auto& [args, text] : cases) {
    EXPECT_EQ(Run(args), 2);
    EXPECT_THAT(err_.str(), HasSubstr(text));
  }
  EXPECT_EQ(Run({"hits", "/no/such.jsonl"}), 1);
  EXPECT_EQ(Run({"hits", "--requests", "10", "--skip", "11"}), 1);
}

TEST_F(SimCommandTest, HelpNamesTheCommands) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("quire-sim serve [TRACE]"));
}

class MooncakeTest : public ::testing::TestWithParam<std::string> {};

TEST_P(MooncakeTest, ReuseClassesExceedLruAndGdsf) {
  auto trace = OpenMooncake(*testing::TestDataPath("traces/mooncake/" + GetParam()));
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto requests = ReadAll(**trace);
  ASSERT_TRUE(requests.ok()) << requests.status();
  for (const int32_t mebi : {1, 2, 4, 8, 16}) {
    const int32_t capacity = mebi * 2048;
    const auto rate = [&](const char* policy) {
      const auto cache = MakeCache(policy, capacity, 512);
      HitCount count;
      for (const TraceRequest& request : *requests) {
        count.hits += cache->Serve(request);
        count.total += std::ssize(request.blocks);
      }
      return count.rate();
    };
    const double lru = rate("lru"), reuse = rate("reuse");
    EXPECT_GE(reuse, lru) << mebi;
    EXPECT_GE(reuse, rate("gdsf")) << mebi;
    if (mebi <= 4) {
      EXPECT_GE(reuse, lru + (MinHits(*requests, capacity).rate() - lru) / 6) << mebi;
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MooncakeTest);
INSTANTIATE_TEST_SUITE_P(Traces, MooncakeTest,
                         ::testing::ValuesIn(testing::IfTestData<std::string>(
                             {"traces/mooncake"}, {"conversation_trace.jsonl"})));

}  // namespace
}  // namespace quire::tools
