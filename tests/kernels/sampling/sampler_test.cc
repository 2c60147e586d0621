#include "kernels/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/sampling/logprobs.h"
#include "tests/kernels/sampling/random_logits.h"

namespace quire::kernels::sampling {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kVocabSize = 300;
constexpr int32_t kEnd = 2;

// A sampler and the work on a row; tests fill in the work.
class SamplerTest : public ::testing::Test {
 protected:
  absl::StatusOr<SampledRow> SampleAt(int64_t position, uint64_t seed = 1) {
    return SampleAt(sampler_, position, seed);
  }
  absl::StatusOr<SampledRow> SampleAt(Sampler& sampler, int64_t position, uint64_t seed = 1) {
    tokens_.resize(static_cast<size_t>(position), 9);
    row_.seed = seed;
    row_.position = position;
    row_.tokens = tokens_;
    return sampler.Sample(logits_, row_);
  }
  int32_t DrawAt(int64_t position, uint64_t seed = 1) {
    const absl::StatusOr<SampledRow> sampled = SampleAt(position, seed);
    EXPECT_TRUE(sampled.ok()) << sampled.status();
    return sampled.ok() ? sampled->id : -1;
  }
  DrawParams& params() { return row_.params; }
  void Allow(std::vector<int32_t> ids) { allowed_ = TokenSet(ids, kVocabSize); }

  Sampler sampler_{{.vocab_size = kVocabSize, .end_ids = {kEnd}}};
  TokenSet allowed_;
  SampleRow row_ = {.allowed = &allowed_};
  std::vector<float> logits_ = NormalLogits(kVocabSize, 2.0f, 3);
  std::vector<int32_t> tokens_;
};

TEST_F(SamplerTest, GreedyTakesTheLargestLogitTheLowestOfEquals) {
  params() = {.temperature = 0.0f, .top_k = 5, .typical_p = 0.01f};  // the cuts are ignored
  logits_[200] = logits_[70] = logits_[71] = 50.0f;
  EXPECT_EQ(DrawAt(0), 70);
  EXPECT_EQ(DrawAt(5, 99), 70);
}

TEST_F(SamplerTest, BiasAndAllowedIdsComeBeforeTheDraw) {
  params().temperature = 0.0f;
  logits_[70] = 50.0f;
  logits_[71] = 49.0f;
  const std::vector<LogitBias> biases = {{.token_id = 71, .bias = 1.0f},
                                         {.token_id = 71, .bias = 0.5f}};
  row_.biases = biases;
  EXPECT_EQ(DrawAt(0), 71) << "entries of one id add up";
  Allow({5, 6, 5});
  const int32_t best = logits_[5] >= logits_[6] ? 5 : 6;
  EXPECT_EQ(DrawAt(0), best);
  params().temperature = 100.0f;
  std::set<int32_t> seen;
  for (int64_t position = 0; position < 100; ++position) seen.insert(DrawAt(position));
  EXPECT_THAT(seen, ::testing::ElementsAre(5, 6));
}

// With these probabilities, swapping two neighbouring stages would change which ids are kept.
TEST_F(SamplerTest, StagesCutInTheirOrder) {
  logits_.assign(kVocabSize, -kInfinity);
  constexpr float kProbabilities[] = {0.4f, 0.3f, 0.2f, 0.1f};
  for (int32_t id = 0; id < 4; ++id) logits_[10 + id] = std::log(kProbabilities[id]);
  const auto kept = [&](const DrawParams& cuts) {
    params() = cuts;
    std::set<int32_t> seen;
    for (int64_t position = 0; position < 200; ++position) seen.insert(DrawAt(position) - 10);
    return seen;
  };
  // Top-k keeps the two likeliest ids. Typical-p then keeps the first of the two, because its
  // -log(p) is nearer to their entropy. In the other order, two of the four ids would be kept.
  EXPECT_EQ(kept({.top_k = 2, .typical_p = 0.45f}), std::set<int32_t>({0}));
  // Typical-p keeps the ids with the probabilities .3 and .2. The first of them has at least half
  // of their mass, so top-p keeps this id alone. In the other order, typical-p would choose from
  // the ids with .4 and .3.
  EXPECT_EQ(kept({.typical_p = 0.45f, .top_p = 0.5f}), std::set<int32_t>({1}));
  // Top-p keeps three ids, whose mass is at least .75. Min-p keeps all three, because each has at
  // least .4 of the largest probability. In the other order, min-p would keep the same three ids,
  // and top-p two of them.
  EXPECT_EQ(kept({.top_p = 0.75f, .min_p = 0.4f}), std::set<int32_t>({0, 1, 2}));
  // The likeliest id has more than half of the mass at temperature .5, and less than half at
  // temperature 1.
  EXPECT_EQ(kept({.temperature = 0.5f, .top_p = 0.5f}), std::set<int32_t>({0}));
  EXPECT_EQ(kept({.temperature = 1.0f, .top_p = 0.5f}), std::set<int32_t>({0, 1}));
}

TEST_F(SamplerTest, PenaltiesSeeThePromptAndTheOutput) {
  params() = {.temperature = 0.0f, .presence_penalty = 2.0f};
  logits_[70] = 50.0f;
  logits_[71] = 49.0f;
  tokens_ = {70, 70, 70};
  row_.tokens = tokens_;
  row_.prompt_len = 3;
  EXPECT_EQ(sampler_.Sample(logits_, row_)->id, 70) << "presence is of the output";
  row_.prompt_len = 2;
  row_.position = 1;
  EXPECT_EQ(sampler_.Sample(logits_, row_)->id, 71);
}

TEST_F(SamplerTest, BannedIdsAreNotDrawn) {
  params().temperature = 0.0f;
  const TokenSet banned(std::vector<int32_t>{70}, kVocabSize);
  logits_[kEnd] = 60.0f;
  logits_[70] = 50.0f;
  logits_[71] = 40.0f;
  EXPECT_EQ(DrawAt(0), kEnd);
  row_.bans_end_ids = true;
  EXPECT_EQ(DrawAt(0), 70);
  row_.banned = &banned;
  EXPECT_EQ(DrawAt(0), 71);
  row_.bans_end_ids = false;
  EXPECT_EQ(DrawAt(0), kEnd);
}

TEST_F(SamplerTest, SaysWhenNothingIsLeftToDraw) {
  row_.bans_end_ids = true;
  Allow({kEnd});
  const absl::Status nothing_left = SampleAt(0).status();
  EXPECT_EQ(nothing_left.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(nothing_left.message()), HasSubstr("allowed_token_ids"));
}

TEST_F(SamplerTest, RefusesARowThatIsNoDistribution) {
  for (const float value : {-kInfinity, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::fill(logits_.begin(), logits_.end(), value);
    for (const float temperature : {0.0f, 1.0f}) {
      params().temperature = temperature;
      EXPECT_EQ(SampleAt(0).status().code(), absl::StatusCode::kInternal) << value;
    }
  }
}

TEST_F(SamplerTest, TakesARowShorterThanTheVocabulary) {
  logits_.resize(130);
  params() = {.temperature = 1.0f, .top_p = 0.9f, .repetition_penalty = 1.2f};
  Allow({7, 129, 299});
  for (int64_t position = 0; position < 50; ++position) {
    EXPECT_THAT(DrawAt(position), ::testing::AnyOf(7, 129));
  }
}

TEST_F(SamplerTest, NeverDrawsWhatIsNotANumber) {
  std::fill(logits_.begin(), logits_.end(), std::numeric_limits<float>::quiet_NaN());
  logits_[100] = -1000.0f;
  for (const float top_p : {1.0f, 0.5f}) {
    params().top_p = top_p;
    for (int64_t position = 0; position < 20; ++position) EXPECT_EQ(DrawAt(position), 100);
  }
}

TEST_F(SamplerTest, LogprobsAreOfTheModelsOwnDistribution) {
  params() = {.temperature = 0.3f, .top_k = 2, .repetition_penalty = 3.0f};
  const LogitBias bias = {.token_id = 4, .bias = 50.0f};
  row_.biases = {&bias, 1};
  EXPECT_FALSE(SampleAt(3)->logprobs.has_value());
  row_.num_top = 3;
  const SampledRow sampled = *SampleAt(3);
  EXPECT_EQ(sampled.id, 4);
  ASSERT_TRUE(sampled.logprobs.has_value());
  const PositionLogprobs raw = ComputeLogprobs(logits_, 4, 3);
  EXPECT_EQ(sampled.logprobs->chosen.logprob, raw.chosen.logprob);
  ASSERT_EQ(sampled.logprobs->top.size(), 3u);
  EXPECT_EQ(sampled.logprobs->top[0].token_id, raw.top[0].token_id);
  EXPECT_NE(sampled.logprobs->top[0].token_id, 4) << "the bias is not in it";
}

TEST_F(SamplerTest, TheRankIsThatOfTheModelsOwnDistributionAndOnRequest) {
  params() = {.temperature = 0.3f, .top_k = 2, .repetition_penalty = 3.0f};
  const LogitBias bias = {.token_id = 4, .bias = 50.0f};
  row_.biases = {&bias, 1};
  row_.num_top = 0;
  EXPECT_EQ(SampleAt(3)->logprobs->rank, 0) << "not asked for";
  row_.wants_rank = true;
  EXPECT_EQ(SampleAt(3)->logprobs->rank, RankOf(logits_, 4));
  EXPECT_GT(RankOf(logits_, 4), 1) << "the bias is not in it";
  row_.num_top.reset();
  EXPECT_FALSE(SampleAt(3)->logprobs.has_value());
  EXPECT_EQ(sampler_.Sample(logits_, {.given = 7, .wants_rank = true})->logprobs->rank,
            RankOf(logits_, 7));
}

TEST_F(SamplerTest, ARowWithAGivenTokenGivesItsLogprobAndDrawsNothing) {
  for (const int32_t num_top : {0, 1, 5}) {
    const SampledRow sampled = *sampler_.Sample(logits_, {.given = 7, .num_top = num_top});
    EXPECT_EQ(sampled.id, 7);
    const PositionLogprobs want = ComputeLogprobs(logits_, 7, num_top);
    ASSERT_TRUE(sampled.logprobs.has_value());
    EXPECT_EQ(sampled.logprobs->chosen.logprob, want.chosen.logprob);
    EXPECT_EQ(sampled.logprobs->top.size(), static_cast<size_t>(num_top));
  }
  logits_[9] = kInfinity;
  EXPECT_EQ(sampler_.Sample(logits_, {.given = 7, .num_top = 1}).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(SamplerTest, TheBestOfARowAreThoseThatMayBeDrawn) {
  logits_[70] = logits_[71] = 9.0f;
  logits_[kEnd] = 9.5f;
  std::vector<TokenLogprob> all = ComputeLogprobs(logits_, 0, kVocabSize).top;
  const auto expect_best = [&](const SampleRow& row, size_t num) {
    const absl::StatusOr<SampledRow> sampled = sampler_.Sample(logits_, row);
    ASSERT_TRUE(sampled.ok()) << sampled.status();
    const std::vector<TokenLogprob>& best = sampled->logprobs->top;
    ASSERT_EQ(best.size(), num);
    for (size_t i = 0; i < num; ++i) {
      EXPECT_EQ(best[i].token_id, all[i].token_id);
      EXPECT_EQ(best[i].logprob, all[i].logprob);
    }
  };
  expect_best({.num_best = 100}, 100);
  std::erase_if(all, [](const TokenLogprob& one) { return one.token_id == kEnd; });
  expect_best({.num_best = 100, .bans_end_ids = true}, 100);
  EXPECT_EQ(all[0].token_id, 70) << "of equals the lower id comes first";
  Allow({5, 71, 6});
  std::erase_if(all, [&](const TokenLogprob& one) { return !allowed_.Contains(one.token_id); });
  expect_best({.num_best = 2, .allowed = &allowed_}, 2);
  expect_best({.num_best = 100, .allowed = &allowed_}, 3);
}

TEST_F(SamplerTest, SeedsDrawDifferently) {
  std::set<int32_t> drawn;
  for (uint64_t k = 0; k < 64; ++k) drawn.insert(DrawAt(0, 1000 + k));
  EXPECT_GT(drawn.size(), 5u);
  EXPECT_EQ(DrawAt(0, 1000), DrawAt(0, 1000));
}

// The model has ids that the tokenizer does not have: padding from 290 on, and a hole at 70.
TEST_F(SamplerTest, IdsWithoutAPieceAreNeverDrawnButHaveTheirShare) {
  std::vector<int32_t> without = {70};
  for (int32_t id = 290; id < kVocabSize; ++id) without.push_back(id);
  std::vector<float> cut(logits_.begin(), logits_.begin() + 290);
  cut[70] = -kInfinity;
  logits_[70] = logits_[291] = 9.0f;
  logits_[299] = 9.5f;
  row_.num_top = 3;
  Sampler padded({.vocab_size = kVocabSize, .end_ids = {kEnd}, .without_piece = without});
  Sampler cut_sampler({.vocab_size = 290, .end_ids = {kEnd}});
  struct Case {
    DrawParams params;
    std::vector<LogitBias> biases;
    std::vector<int32_t> allowed;
  };
  const Case cases[] = {
      {.params = {.temperature = 0.0f}},
      {.params = {.temperature = 2.0f}},
      {.params = {.temperature = 1.0f, .top_k = 20, .top_p = 0.9f}},
      {.params = {.repetition_penalty = 1.5f}, .biases = {{.token_id = 299, .bias = 50.0f}}},
      {.params = {.temperature = 50.0f}, .allowed = {299, 70, 5, 6}}};
  for (const Case& a_case : cases) {
    row_.params = a_case.params;
    row_.biases = a_case.biases;
    Allow(a_case.allowed);
    for (int64_t position = 0; position < 50; ++position) {
      const absl::StatusOr<SampledRow> sampled = SampleAt(padded, position);
      ASSERT_TRUE(sampled.ok()) << sampled.status();
      const PositionLogprobs whole = ComputeLogprobs(logits_, sampled->id, 3);
      EXPECT_EQ(sampled->logprobs->chosen.logprob, whole.chosen.logprob);
      EXPECT_EQ(sampled->logprobs->top[0].token_id, 299);
      EXPECT_EQ(sampled->id, cut_sampler.Sample(cut, row_)->id) << "as if they were not there";
    }
  }
  Allow({299, 70});
  row_.biases = {};
  EXPECT_THAT(SampleAt(padded, 0).status().message(), HasSubstr("has no piece"));
}

TEST_F(SamplerTest, ARowDoesNotDependOnItsCompany) {
  // Rows of several kinds are sampled one at a time, all at once, in another order, and on several
  // threads.
  constexpr int64_t kRows = 60;
  const TokenSet allowed(std::vector<int32_t>{1, 2, 3, 50, 60}, kVocabSize);
  const SampleRow kinds[] = {{.params = {.temperature = 0.0f}},
                             {.params = {.temperature = 1.0f}},
                             {.params = {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f}},
                             {.params = {.temperature = 1.2f, .typical_p = 0.9f, .min_p = 0.01f}},
                             {.params = {.presence_penalty = 1.0f, .repetition_penalty = 1.2f}},
                             {.num_top = 2, .allowed = &allowed}};
  std::vector<float> logits;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<SampleRow> rows;
  for (uint32_t i = 0; i < kRows; ++i) {
    const std::vector<float> row = NormalLogits(kVocabSize, 3.0f, i);
    logits.insert(logits.end(), row.begin(), row.end());
    tokens.emplace_back(i, static_cast<int32_t>(i));
  }
  const TensorView view(logits.data(), DType::kF32, {kRows, kVocabSize});
  for (uint32_t i = 0; i < kRows; ++i) {
    SampleRow row = kinds[i % 6];
    row.row = i;
    row.seed = i / 3;
    row.position = i;
    row.tokens = tokens[i];
    rows.push_back(row);
  }
  std::vector<int32_t> alone;
  for (const SampleRow& row : rows) {
    Sampler fresh({.vocab_size = kVocabSize, .end_ids = {kEnd}});
    alone.push_back(
        fresh.Sample(std::span(logits).subspan(row.row * kVocabSize, kVocabSize), row)->id);
  }

  const auto check = [&](Sampler& sampler, ParallelFor parallel_for, bool reversed) {
    std::vector<SampleRow> ordered = rows;
    std::vector<int32_t> expected = alone;
    if (reversed) {
      std::reverse(ordered.begin(), ordered.end());
      std::reverse(expected.begin(), expected.end());
    }
    for (int32_t i = 0; i < kRows; ++i) ordered[i].draw = i;
    std::vector<int32_t> drawn(kRows, -1);
    std::vector<absl::StatusOr<SampledRow>> results;
    sampler.Run(
        {.logits = view, .rows = ordered, .drawn = TensorView(drawn.data(), DType::kI32, {kRows})},
        parallel_for);
    sampler.Take(results);
    ASSERT_EQ(results.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(results[i].ok());
      EXPECT_EQ(results[i]->id, expected[i]) << i;
      EXPECT_EQ(results[i]->logprobs.has_value(), ordered[i].num_top.has_value());
    }
    EXPECT_EQ(drawn, expected);
  };
  check(sampler_, RunInOrder, false);
  check(sampler_, RunInOrder, true);
  constexpr int kLanes = 4;
  Sampler wide({.vocab_size = kVocabSize, .end_ids = {kEnd}}, kLanes);
  const auto threads = [](int64_t n, absl::FunctionRef<void(int64_t, int)> row) {
    std::vector<std::thread> pool;
    for (int lane = 0; lane < kLanes; ++lane) {
      pool.emplace_back([=] {
        for (int64_t i = lane; i < n; i += kLanes) row(i, lane);
      });
    }
    for (std::thread& thread : pool) thread.join();
  };
  check(wide, threads, false);
  check(wide, threads, true);
}

TEST_F(SamplerTest, ATokenOfTheCallBeforeCountsForPenalties) {
  params() = {.temperature = 0.0f, .presence_penalty = 2.0f};
  logits_[70] = 50.0f;
  logits_[71] = 49.0f;
  const TensorView view(logits_.data(), DType::kF32, {1, kVocabSize});
  std::vector<int32_t> drawn = {5, 70, 6};
  std::vector<absl::StatusOr<SampledRow>> results;
  const auto run = [&](int32_t previous) {
    row_.draw = 1;
    row_.previous = previous;
    row_.position = previous < 0 ? 0 : 1;
    sampler_.Run(
        {.logits = view, .rows = {&row_, 1}, .drawn = TensorView(drawn.data(), DType::kI32, {3})},
        RunInOrder);
    sampler_.Take(results);
    return results[0];
  };
  EXPECT_EQ(run(1)->id, 71);
  EXPECT_THAT(drawn, ::testing::ElementsAre(5, 71, 6));
  EXPECT_EQ(run(0)->id, 70);
  EXPECT_EQ(run(-1)->id, 70);
  logits_.assign(kVocabSize, kInfinity);
  EXPECT_FALSE(run(1).ok());
  EXPECT_THAT(drawn, ::testing::ElementsAre(5, 0, 6)) << "a draw that fails writes a valid id";
}

}  // namespace
}  // namespace quire::kernels::sampling
