#include "kernels/sampling/penalties.h"

#include <cstdint>
#include <limits>
#include <map>
#include <rapidcheck.h>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::kernels::sampling {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;

std::vector<float> Penalized(const DrawParams& params, const std::vector<int32_t>& tokens,
                             int64_t prompt_len, std::vector<float> logits) {
  Penalties penalties(static_cast<int32_t>(logits.size()));
  penalties.Apply(params, tokens, prompt_len, logits);
  return logits;
}

TEST(PenaltiesTest, RepetitionCountsThePromptTheOthersOnlyTheOutput) {
  const std::vector<float> logits = {2.0f, -2.0f, 2.0f, 2.0f};
  const std::vector<int32_t> tokens = {0, 1, 2, 2};  // the first two are the prompt
  EXPECT_THAT(Penalized({.repetition_penalty = 2.0f}, tokens, 2, logits),
              ElementsAre(1.0f, -4.0f, 1.0f, 2.0f));
  EXPECT_THAT(Penalized({.frequency_penalty = 0.5f}, tokens, 2, logits),
              ElementsAre(2.0f, -2.0f, 1.0f, 2.0f));
  EXPECT_THAT(Penalized({.presence_penalty = 0.5f}, tokens, 2, logits),
              ElementsAre(2.0f, -2.0f, 1.5f, 2.0f));
  EXPECT_THAT(
      Penalized({.presence_penalty = 0.5f, .frequency_penalty = 0.25f, .repetition_penalty = 4.0f},
                tokens, 2, logits),
      ElementsAre(0.5f, -8.0f, -0.5f, 2.0f));
}

TEST(PenaltiesTest, LooksBackOnlySoFar) {
  const std::vector<float> logits(4, 2.0f);
  const std::vector<int32_t> tokens = {0, 1, 2, 2, 3};
  const DrawParams params = {.frequency_penalty = 1.0f, .repetition_penalty = 2.0f};
  const auto with_last_n = [&](int32_t last_n) {
    DrawParams limited = params;
    limited.penalty_last_n = last_n;
    return Penalized(limited, tokens, 2, logits);
  };
  EXPECT_THAT(with_last_n(2), ElementsAre(2.0f, 2.0f, 0.0f, 0.0f));
  EXPECT_THAT(with_last_n(4), ElementsAre(2.0f, 1.0f, -1.0f, 0.0f));
  EXPECT_THAT(with_last_n(100), ElementsAre(1.0f, 1.0f, -1.0f, 0.0f));
  EXPECT_THAT(with_last_n(-1), ElementsAre(1.0f, 1.0f, -1.0f, 0.0f));
  EXPECT_THAT(with_last_n(0), ElementsAre(2.0f, 2.0f, 2.0f, 2.0f));
}

TEST(PenaltiesTest, PassesOverIdsThatHaveNoLogit) {
  EXPECT_THAT(Penalized({.repetition_penalty = 2.0f}, {7, -1, 1}, 3, {1.0f, 1.0f}),
              ElementsAre(1.0f, FloatEq(0.5f)));
}

TEST(PenaltiesTest, AnOverflowStaysFinite) {
  EXPECT_THAT(Penalized({.repetition_penalty = 1e-40f}, {0}, 1, {8.0f}),
              ElementsAre(std::numeric_limits<float>::max()));
}

TEST(PenaltiesTest, HasPenaltiesSaysWhetherAnythingChanges) {
  EXPECT_FALSE(DrawParams().has_penalties());
  EXPECT_TRUE((DrawParams{.presence_penalty = -1.0f}.has_penalties()));
  EXPECT_TRUE((DrawParams{.frequency_penalty = 1.0f}.has_penalties()));
  EXPECT_TRUE((DrawParams{.repetition_penalty = 1.1f}.has_penalties()));
  EXPECT_FALSE((DrawParams{.repetition_penalty = 1.1f, .penalty_last_n = 0}.has_penalties()));
}

TEST(PenaltiesTest, OneObjectServesRowAfterRow) {
  Penalties penalties(20);
  EXPECT_TRUE(rc::check([&] {
    const auto tokens = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(0, 20));
    const auto prompt_len = *rc::gen::inRange<int64_t>(0, std::ssize(tokens) + 1);
    const DrawParams params = {.presence_penalty = 0.5f,
                               .frequency_penalty = -0.25f,
                               .repetition_penalty = 1.5f,
                               .penalty_last_n = *rc::gen::inRange(-1, 30)};
    std::vector<float> logits(20);
    for (int i = 0; i < 20; ++i) logits[i] = static_cast<float>(i) - 9.5f;
    std::vector<float> expected = logits;
    std::map<int32_t, std::pair<int, int>> counts;
    for (int64_t i = 0; i < std::ssize(tokens); ++i) {
      if (params.penalty_last_n >= 0 && i < std::ssize(tokens) - params.penalty_last_n) continue;
      ++counts[tokens[i]].first;
      if (i >= prompt_len) ++counts[tokens[i]].second;
    }
    for (const auto& [id, count] : counts) {
      float& x = expected[id];
      x = x > 0 ? x / 1.5f : x * 1.5f;
      x -= -0.25f * static_cast<float>(count.second);
      x -= count.second > 0 ? 0.5f : 0.0f;
    }
    penalties.Apply(params, tokens, prompt_len, logits);
    RC_ASSERT(logits == expected);
  }));
}

}  // namespace
}  // namespace quire::kernels::sampling
