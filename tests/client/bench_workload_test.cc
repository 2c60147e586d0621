#include "client/bench_workload.h"

#include <cmath>
#include <rapidcheck.h>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::client {
namespace {

using ::testing::HasSubstr;

WorkloadConfig SmallConfig() {
  WorkloadConfig config;
  config.vocab_size = 50;
  config.excluded_ids = {0, 1, 2};
  return config;
}

TEST(LengthMixTest, ParsesNumbersRangesAndMixes) {
  const LengthMix mix = ParseLengthMix("16,100..200").value();
  ASSERT_EQ(mix.ranges.size(), 2u);
  EXPECT_EQ(mix.ranges[0].low, 16u);
  EXPECT_EQ(mix.ranges[0].high, 16u);
  EXPECT_EQ(mix.ranges[1].low, 100u);
  EXPECT_EQ(mix.ranges[1].high, 200u);
  EXPECT_EQ(mix.max(), 200u);
}

TEST(LengthMixTest, RefusesEverythingElse) {
  for (const char* bad : {"", "0", "5..4", "1..2..3", "a", "-1", "3,", "1...2"}) {
    const auto mix = ParseLengthMix(bad);
    ASSERT_FALSE(mix.ok()) << bad;
    EXPECT_THAT(std::string(mix.status().message()), HasSubstr("64..512"));
  }
}

TEST(WorkloadTest, TheSameSeedGivesTheSameLoadAndAnotherDoesNot) {
  WorkloadConfig config = SmallConfig();
  config.rate = 10;
  config.cancel_rate = 0.5;
  Workload one(config), same(config);
  config.seed = 1;
  Workload other(config);
  bool differs = false;
  for (int i = 0; i < 20; ++i) {
    const PlannedRequest a = one.Next(), b = same.Next(), c = other.Next();
    EXPECT_EQ(a.arrival, b.arrival);
    EXPECT_EQ(a.token_ids, b.token_ids);
    EXPECT_EQ(a.cancel_after_tokens, b.cancel_after_tokens);
    differs |= a.token_ids != c.token_ids;
  }
  EXPECT_TRUE(differs);
}

// The gaps between arrivals must be exponential: their variance is the square of their mean. For n
// gaps, the relative standard error is 1 / sqrt(n) for the mean and sqrt(8 / n) for the variance.
// Both tolerances are five standard errors.
TEST(WorkloadTest, ArrivalsArePoisson) {
  constexpr int kRequests = 20000;
  WorkloadConfig config = SmallConfig();
  config.rate = 40;
  config.prompt_tokens = {{{1, 1}}};
  Workload workload(config);
  double sum = 0, sum_of_squares = 0;
  absl::Duration before;
  for (int i = 0; i < kRequests; ++i) {
    const absl::Duration arrival = workload.Next().arrival;
    ASSERT_GE(arrival, before);
    const double gap = absl::ToDoubleSeconds(arrival - before);
    sum += gap;
    sum_of_squares += gap * gap;
    before = arrival;
  }
  const double mean = sum / kRequests;
  const double variance = sum_of_squares / kRequests - mean * mean;
  EXPECT_NEAR(mean * config.rate, 1.0, 5 / std::sqrt(kRequests));
  EXPECT_NEAR(variance * config.rate * config.rate, 1.0, 5 * std::sqrt(8.0 / kRequests));
}

TEST(WorkloadTest, AClosedLoopPlansNoArrivals) {
  Workload workload(SmallConfig());
  EXPECT_EQ(workload.Next().arrival, absl::ZeroDuration());
  EXPECT_EQ(workload.Next().arrival, absl::ZeroDuration());
}

TEST(WorkloadTest, LengthsAndIdsStayInTheirRanges) {
  EXPECT_TRUE(rc::check([] {
    WorkloadConfig config = SmallConfig();
    const auto low = *rc::gen::inRange<uint32_t>(1, 20);
    const auto high = *rc::gen::inRange<uint32_t>(low, 40);
    config.prompt_tokens = {{{low, high}}};
    config.output_tokens = {{{low, high}}};
    config.cancel_rate = 0.5;
    config.seed = *rc::gen::arbitrary<uint64_t>();
    Workload workload(config);
    for (int i = 0; i < 20; ++i) {
      const PlannedRequest request = workload.Next();
      RC_ASSERT(request.token_ids.size() >= low && request.token_ids.size() <= high);
      RC_ASSERT(request.max_tokens >= low && request.max_tokens <= high);
      RC_ASSERT(request.cancel_after_tokens.value_or(0) < request.max_tokens);
      for (const int32_t id : request.token_ids) RC_ASSERT(id >= 3 && id < 50);
    }
  }));
}

TEST(WorkloadTest, EveryLengthOfAMixIsDrawn) {
  WorkloadConfig config = SmallConfig();
  config.prompt_tokens = ParseLengthMix("3,7..9").value();
  Workload workload(config);
  std::set<size_t> lengths;
  for (int i = 0; i < 500; ++i) lengths.insert(workload.Next().token_ids.size());
  EXPECT_EQ(lengths, (std::set<size_t>{3, 7, 8, 9}));
}

TEST(WorkloadTest, TheShareThatBeginsAlikeIsTheOneAskedFor) {
  constexpr int kRequests = 4000;
  WorkloadConfig config = SmallConfig();
  config.prompt_tokens = {{{4, 4}}};
  config.shared_prefix_tokens = 12;
  config.shared_prefix_fraction = 0.25;
  config.num_shared_prefixes = 3;
  Workload workload(config);
  std::set<std::vector<int32_t>> prefixes;
  int shared = 0;
  for (int i = 0; i < kRequests; ++i) {
    const PlannedRequest request = workload.Next();
    if (request.token_ids.size() == 4) continue;
    ASSERT_EQ(request.token_ids.size(), 16u);
    prefixes.emplace(request.token_ids.begin(), request.token_ids.begin() + 12);
    ++shared;
  }
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_NEAR(static_cast<double>(shared) / kRequests, 0.25,
              5 * std::sqrt(0.25 * 0.75 / kRequests));
}

TEST(WorkloadTest, TheShareThatIsCancelledIsTheOneAskedFor) {
  constexpr int kRequests = 4000;
  WorkloadConfig config = SmallConfig();
  config.prompt_tokens = {{{1, 1}}};
  config.cancel_rate = 0.1;
  Workload workload(config);
  int cancelled = 0;
  for (int i = 0; i < kRequests; ++i)
    cancelled += workload.Next().cancel_after_tokens.has_value() ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(cancelled) / kRequests, 0.1,
              5 * std::sqrt(0.1 * 0.9 / kRequests));
}

TEST(WorkloadTest, TextsAreDrawnInsteadOfIds) {
  WorkloadConfig config;
  config.prompts = {"one", "two"};
  Workload workload(config);
  std::set<std::string> texts;
  for (int i = 0; i < 50; ++i) {
    const PlannedRequest request = workload.Next();
    EXPECT_TRUE(request.token_ids.empty());
    texts.insert(request.text);
  }
  EXPECT_EQ(texts, (std::set<std::string>{"one", "two"}));
}

}  // namespace
}  // namespace quire::client
