#include "kernels/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <rapidcheck.h>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/sampling/random_logits.h"

namespace quire::kernels::sampling {
namespace {

TEST(LogprobsTest, AreTheLogSoftmaxOfTheRawRow) {
  EXPECT_TRUE(rc::check([] {
    std::vector<float> logits = *AnyLogits(2000);
    const auto chosen = *rc::gen::inRange(0, static_cast<int32_t>(logits.size()));
    const auto num_top = *rc::gen::inRange(0, 21);
    const PositionLogprobs result = ComputeLogprobs(logits, chosen, num_top);

    std::vector<int32_t> ids;
    double max = -std::numeric_limits<double>::infinity();
    for (int32_t id = 0; id < std::ssize(logits); ++id) {
      if (std::isnan(logits[id])) logits[id] = -std::numeric_limits<float>::infinity();
      if (!std::isinf(logits[id])) ids.push_back(id);
      max = std::max<double>(max, logits[id]);
    }
    double sum = 0.0;
    for (const int32_t id : ids) sum += std::exp(logits[id] - max);
    const auto near = [&](const TokenLogprob& got) {
      if (std::isinf(logits[got.token_id])) return got.logprob == logits[got.token_id];
      const double exact = logits[got.token_id] - max - std::log(sum);
      // Weights are float32 exponentials of float32 differences. The result is rounded once more
      // when it is stored.
      return std::abs(got.logprob - exact) <= 2e-6 + std::abs(exact) * 1.2e-7;
    };
    RC_ASSERT(result.chosen.token_id == chosen);
    RC_ASSERT(near(result.chosen));
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    RC_ASSERT(std::ssize(result.top) == std::min<int64_t>(num_top, std::ssize(ids)));
    for (int64_t i = 0; i < std::ssize(result.top); ++i) {
      RC_ASSERT(result.top[i].token_id == ids[i]);
      RC_ASSERT(near(result.top[i]));
    }
  }));
}

TEST(LogprobsTest, TheRankIsThePlaceAmongAllIds) {
  EXPECT_TRUE(rc::check([] {
    std::vector<float> logits = *AnyLogits(300);
    const float value = *rc::gen::elementOf(logits);  // makes ties, of 0 and -0 as well
    for (float& logit : logits) {
      if (*rc::gen::inRange(0, 4) == 0) logit = *rc::gen::element(value, -value, 0.0f, -0.0f);
    }
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto likelihood = [&](int32_t id) {
      return std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return likelihood(a) > likelihood(b); });
    for (size_t place = 0; place < order.size(); ++place) {
      RC_ASSERT(RankOf(logits, order[place]) == static_cast<int32_t>(place) + 1);
    }
    RC_ASSERT(RankOf(logits, static_cast<int32_t>(logits.size())) ==
              static_cast<int32_t>(logits.size()) + 1);
    const PositionLogprobs top = ComputeLogprobs(logits, 0, 20);
    for (size_t k = 0; k < top.top.size(); ++k) {
      RC_ASSERT(RankOf(logits, top.top[k].token_id) == static_cast<int32_t>(k) + 1);
    }
  }));
}

TEST(LogprobsTest, AnIdWithoutALogitHasNoProbability) {
  for (const int32_t id : {-1, 2}) {
    const PositionLogprobs result = ComputeLogprobs(std::vector<float>{0.0f, 0.0f}, id, 1);
    EXPECT_EQ(result.chosen.logprob, -std::numeric_limits<float>::infinity());
    EXPECT_EQ(result.top.size(), 1u);
  }
}

TEST(LogprobsTest, ARowWithoutADistributionHasNone) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {-infinity, infinity, std::numeric_limits<float>::quiet_NaN()}) {
    const PositionLogprobs result = ComputeLogprobs(std::vector<float>(5, value), 3, 2);
    EXPECT_EQ(result.chosen.token_id, 3);
    EXPECT_EQ(result.chosen.logprob, -infinity);
    EXPECT_TRUE(result.top.empty());
  }
}

}  // namespace
}  // namespace quire::kernels::sampling
