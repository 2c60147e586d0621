// Tests that ids are drawn with their probabilities after all stages.

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/sampling/sampler.h"

namespace quire::kernels::sampling {
namespace {

// A case of a chi-square test of drawn ids. The seeds are fixed, so the test is never flaky. A
// chi-square variable with d degrees of freedom is at most d + 2 sqrt(d x) + 2 x with a probability
// of at least 1 - e^-x (Laurent and Massart, 2000, lemma 1).
struct DistributionCase {
  std::string name;
  DrawParams params;
  std::vector<LogitBias> biases;
  std::vector<int32_t> allowed;
  // Takes a row of logits. Returns the probability of each id that the stages keep. For the cases
  // below, the kept ids were worked out by hand.
  std::function<std::map<int32_t, double>(const std::vector<float>&)> expected;
};

std::map<int32_t, double> Softmax(const std::vector<float>& logits, double temperature,
                                  const std::function<bool(int32_t)>& keep) {
  std::map<int32_t, double> probabilities;
  double sum = 0.0;
  for (int32_t id = 0; id < std::ssize(logits); ++id) {
    if (keep(id)) sum += probabilities[id] = std::exp(logits[id] / temperature);
  }
  for (auto& [id, probability] : probabilities) probability /= sum;
  return probabilities;
}

void PrintTo(const DistributionCase& a_case, std::ostream* out) { *out << a_case.name; }

class DistributionTest : public ::testing::TestWithParam<DistributionCase> {};

TEST_P(DistributionTest, DrawsWithTheProbabilitiesThatAreLeft) {
  constexpr int32_t kNumIds = 12;
  constexpr int64_t kDraws = 20000;
  constexpr double kX = 14.0;  // e^-14: one in a million
  // The logits are the logarithms of 12, 11, ... 1, so id i has probability (12 - i) / 78 at
  // temperature 1.
  std::vector<float> logits;
  for (int32_t i = 0; i < kNumIds; ++i) logits.push_back(std::log(static_cast<float>(12 - i)));
  const std::map<int32_t, double> expected = GetParam().expected(logits);
  const TokenSet allowed(GetParam().allowed, kNumIds);
  Sampler sampler({.vocab_size = kNumIds});

  // The first round draws with many seeds at one position. The second round draws at many positions
  // with one seed.
  for (const bool over_seeds : {true, false}) {
    std::map<int32_t, int64_t> counts;
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < kDraws; ++i) {
      // Each token increases the position by one. Every token is kNumIds, which is outside the row,
      // so no penalty applies.
      if (!over_seeds) tokens.push_back(kNumIds);
      const absl::StatusOr<SampledRow> sampled =
          sampler.Sample(logits, {.params = GetParam().params,
                                  .seed = over_seeds ? static_cast<uint64_t>(i) : 5,
                                  .position = std::ssize(tokens),
                                  .biases = GetParam().biases,
                                  .allowed = &allowed,
                                  .tokens = tokens});
      ASSERT_TRUE(sampled.ok());
      ++counts[sampled->id];
    }
    double chi_square = 0.0;
    int64_t num_drawn = 0;
    for (const auto& [id, probability] : expected) {
      const double mean = probability * kDraws;
      ASSERT_GE(mean, 5.0);
      chi_square += (counts[id] - mean) * (counts[id] - mean) / mean;
      num_drawn += counts[id];
    }
    EXPECT_EQ(num_drawn, kDraws) << "an id was drawn that was cut";
    const double d = static_cast<double>(expected.size()) - 1.0;
    EXPECT_LE(chi_square, d + 2.0 * std::sqrt(d * kX) + 2.0 * kX) << "over_seeds " << over_seeds;
  }
}

std::vector<DistributionCase> DistributionCases() {
  const auto all = [](int32_t) { return true; };
  const auto below = [](int32_t end) { return [end](int32_t id) { return id < end; }; };
  const auto cut_at = [](double temperature, std::function<bool(int32_t)> keep) {
    return [=](const std::vector<float>& l) { return Softmax(l, temperature, keep); };
  };
  // Cumulative probabilities at temperature 1, in 78ths: 12 23 33 42 50 57 63 68 72 75 77 78.
  return {
      {"Plain", {}, {}, {}, cut_at(1.0, all)},
      {"Cold", {.temperature = 0.5f}, {}, {}, cut_at(0.5, all)},
      {"Hot", {.temperature = 3.0f}, {}, {}, cut_at(3.0, all)},
      {"TopK", {.top_k = 3}, {}, {}, cut_at(1.0, below(3))},
      {"TopP", {.top_p = 0.5f}, {}, {}, cut_at(1.0, below(4))},   // 33 < 39 <= 42
      {"MinP", {.min_p = 0.45f}, {}, {}, cut_at(1.0, below(7))},  // 12 * 0.45 = 5.4: 6 stays
      // The entropy is 2.327. The ids whose -log(p) is nearest are 4 (2.277), 5 (2.411) and 3
      // (2.159). Their mass is 24 of 78, which reaches 0.3.
      {"TypicalP",
       {.typical_p = 0.3f},
       {},
       {},
       cut_at(1.0, [](int32_t id) { return 3 <= id && id <= 5; })},
      {"TopKThenTopP",
       {.top_k = 4, .top_p = 0.6f},
       {},
       {},
       cut_at(1.0, below(3))},  // 23 < 25.2 <= 33
      {"TopKThenMinP", {.top_k = 8, .min_p = 0.7f}, {}, {}, cut_at(1.0, below(4))},  // 8.4: 9 stays
      {"AllCuts",
       {.temperature = 2.0f, .top_k = 10, .typical_p = 0.99f, .top_p = 0.9f, .min_p = 0.8f},
       {},
       {},
       cut_at(2.0, below(5))},  // sqrt(x / 12) >= 0.8: x >= 7.68
      {.name = "Bias",
       .biases = {{.token_id = 11, .bias = std::log(12.0f)}},
       .expected =
           [=](std::vector<float> l) {
             l[11] = l[0];
             return Softmax(l, 1.0, all);
           }},
      {.name = "Allowed",
       .allowed = {0, 3, 9},
       .expected = cut_at(1.0, [](int32_t id) { return id == 0 || id == 3 || id == 9; })},
  };
}

INSTANTIATE_TEST_SUITE_P(Stages, DistributionTest, ::testing::ValuesIn(DistributionCases()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace quire::kernels::sampling
