#include "kernels/ops/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <rapidcheck.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/moe_testing.h"
#include "tests/testing/pick.h"

namespace quire::kernels {
namespace {

using testing::F32;
using ::testing::HasSubstr;
using testing::IsaPaths;
using testing::MakeBackend;
using testing::MixtureShape;
using testing::Normal;
using testing::Owned;
using testing::Pick;
using testing::RoutingWeights;
using testing::RunMixture;
using testing::TestMixture;

std::vector<float> RowsOf(const std::vector<float>& values, int64_t begin, int64_t count,
                          int64_t cols) {
  return {values.begin() + begin * cols, values.begin() + (begin + count) * cols};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Checks that the outputs of each token are within their bounds. Skips tokens whose choice of
// experts is uncertain, and expects that at most a tenth of all tokens are skipped.
void ExpectNear(const TestMixture& mixture, const std::vector<float>& input,
                const std::vector<float>& residual, const std::vector<float>& got) {
  const int64_t hidden = mixture.shape().hidden;
  const int64_t num_tokens = static_cast<int64_t>(input.size()) / hidden;
  int64_t certain = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const auto answer = mixture.Naive(RowsOf(input, t, 1, hidden),
                                      residual.empty() ? residual : RowsOf(residual, t, 1, hidden));
    if (answer.margin <= 0.0) continue;
    ++certain;
    for (int64_t i = 0; i < hidden; ++i) {
      const testing::Exact& want = answer.out[static_cast<size_t>(i)];
      ASSERT_NEAR(got[static_cast<size_t>(t * hidden + i)], want.value, want.bound)
          << "token " << t << " of " << num_tokens << ", element " << i;
    }
  }
  EXPECT_GE(certain * 10, num_tokens * 9);
}

class MoeTypeTest : public ::testing::TestWithParam<WeightType> {};

TEST_P(MoeTypeTest, AgreesWithDoublesOnEveryPath) {
  // Quantised rows must be whole blocks. Rows of floats may have any length.
  const bool blocks = !testing::IsFloat(GetParam());
  const MixtureShape shape{
      .num_experts = 5,
      .hidden = blocks ? 256 : 44,
      .intermediate = blocks ? 256 : 37,
      .num_chosen = 2,
      .weights = blocks ? ExpertWeights::kSoftmaxOfChosen : ExpertWeights::kSoftmaxOfAll};
  const TestMixture mixture(GetParam(), shape, 1);
  const std::vector<float> input = Normal(2, 9 * shape.hidden);
  const std::vector<float> residual = Normal(3, 9 * shape.hidden);
  for (const std::string& isa : IsaPaths()) {
    SCOPED_TRACE(isa);
    const auto backend = MakeBackend(isa);
    const auto weights = mixture.Prepare(*backend);
    ExpectNear(mixture, input, residual, RunMixture(*backend, weights, shape, input, residual));
    ExpectNear(mixture, input, {}, RunMixture(*backend, weights, shape, input));
  }
}

TEST_P(MoeTypeTest, BiasesAndClampsAgreeWithDoublesOnEveryPath) {
  const bool blocks = !testing::IsFloat(GetParam());
  const MixtureShape shape{.num_experts = 5,
                           .hidden = blocks ? 256 : 44,
                           .intermediate = blocks ? 256 : 37,
                           .num_chosen = 2,
                           .biases = true,
                           .limit = 0.75f};  // many gates and ups are beyond it, on both sides
  const TestMixture mixture(GetParam(), shape, 31);
  const std::vector<float> input = Normal(32, 9 * shape.hidden);
  const std::vector<float> residual = Normal(33, 9 * shape.hidden);
  for (const std::string& isa : IsaPaths()) {
    SCOPED_TRACE(isa);
    const auto backend = MakeBackend(isa, 2);
    const auto weights = mixture.Prepare(*backend);
    ExpectNear(mixture, input, residual, RunMixture(*backend, weights, shape, input, residual));
  }
}

TEST_P(MoeTypeTest, ScaledInputsAgreeWithDoublesOnEveryPath) {
  const bool blocks = !testing::IsFloat(GetParam());
  for (const ExpertWeights kind : {ExpertWeights::kLogistic, ExpertWeights::kSoftmaxOfAll}) {
    const MixtureShape shape{.num_experts = 5,
                             .hidden = blocks ? 256 : 44,
                             .intermediate = blocks ? 256 : 37,
                             .num_chosen = 2,
                             .weights = kind,
                             .weights_scale_input = true,
                             .biases = true};
    const TestMixture mixture(GetParam(), shape, 51);
    const std::vector<float> input = Normal(52, 9 * shape.hidden);
    const std::vector<float> residual = Normal(53, 9 * shape.hidden);
    for (const std::string& isa : IsaPaths()) {
      SCOPED_TRACE(isa);
      const auto backend = MakeBackend(isa, 2);
      const auto weights = mixture.Prepare(*backend);
      ExpectNear(mixture, input, residual, RunMixture(*backend, weights, shape, input, residual));
    }
  }
}

TEST_P(MoeTypeTest, BiasedChoicesAgreeWithDoublesOnEveryPath) {
  const bool blocks = !testing::IsFloat(GetParam());
  for (const bool choice_bias : {false, true}) {
    // More experts than a vector has lanes, and not a multiple of them.
    const MixtureShape shape{.num_experts = 21,
                             .hidden = blocks ? 256 : 44,
                             .intermediate = blocks ? 256 : 37,
                             .num_chosen = 3,
                             .weights = ExpertWeights::kNormedLogistic,
                             .choice_bias = choice_bias};
    const TestMixture mixture(GetParam(), shape, 61);
    const std::vector<float> input = Normal(62, 9 * shape.hidden);
    const std::vector<float> residual = Normal(63, 9 * shape.hidden);
    for (const std::string& isa : IsaPaths()) {
      SCOPED_TRACE(isa);
      const auto backend = MakeBackend(isa, 2);
      const auto weights = mixture.Prepare(*backend);
      ExpectNear(mixture, input, residual, RunMixture(*backend, weights, shape, input, residual));
    }
  }
}

TEST_P(MoeTypeTest, BitsDependOnTheTokenAlone) {
  const MixtureShape shape{.num_experts = 6, .hidden = 256, .intermediate = 256, .num_chosen = 3};
  // The first 80 tokens choose expert 2, which in the largest batch gets more tokens than one work
  // item can take. In small batches, an expert gets one token or a few.
  constexpr int64_t kTokens = 90;
  TestMixture mixture(GetParam(), shape, 4);
  mixture.Prefer(2);
  std::vector<float> input = Normal(5, kTokens * shape.hidden);
  for (int64_t t = 0; t < 80; ++t) {
    float& first = input[static_cast<size_t>(t * shape.hidden)];
    first = std::abs(first) + 0.1f;
  }
  const auto portable = MakeBackend("portable", 1);
  const std::vector<float> want = RunMixture(*portable, mixture.Prepare(*portable), shape, input);
  int runs = 0;
  for (const std::string& isa : IsaPaths()) {
    for (const bool pack : {true, false}) {
      if (isa == "portable" && pack) continue;  // `want` comes from the portable path
      const auto backend = MakeBackend(isa, pack ? 3 : 1, pack);
      const auto weights = mixture.Prepare(*backend);
      for (const int64_t chunk : {1, 2, 7, 33, 90}) {
        if ((isa == "portable" || !pack) && chunk != 33) continue;  // these runs are slow
        std::vector<float> got;
        for (int64_t t = 0; t < kTokens; t += chunk) {
          const std::vector<float> part =
              RunMixture(*backend, weights, shape,
                         RowsOf(input, t, std::min(chunk, kTokens - t), shape.hidden));
          got.insert(got.end(), part.begin(), part.end());
        }
        ASSERT_TRUE(SameBits(got, want)) << isa << " pack " << pack << " chunk " << chunk;
        ++runs;
      }
    }
  }
  EXPECT_GE(runs, 7);
}

INSTANTIATE_TEST_SUITE_P(Types, MoeTypeTest, ::testing::ValuesIn(testing::kAllWeightTypes),
                         [](const auto& type) { return std::string(Traits(type.param).name); });

TEST(MoeRoutingTest, OfEqualLogitsTheLowerIdsAreChosen) {
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa);
    EXPECT_EQ(RoutingWeights(*backend, {1, 1, 1, 1, 1}, 5, 2),
              (std::vector<float>{0.5, 0.5, 0, 0, 0}));
    EXPECT_EQ(RoutingWeights(*backend, {0, 2, 0, 2, 2}, 5, 2),
              (std::vector<float>{0, 0.5, 0, 0.5, 0}));
    EXPECT_EQ(RoutingWeights(*backend, {-0.0f, 0.0f, 0.0f}, 3, 1), (std::vector<float>{1, 0, 0}));
  }
}

TEST(MoeRoutingTest, OneExpertOrAllOfThem) {
  const double e1 = std::exp(-1.0), e3 = std::exp(-3.0), sum = 1 + e1 + e3;
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa);
    EXPECT_EQ(RoutingWeights(*backend, {3, -2, 4}, 3, 1), (std::vector<float>{0, 0, 1}));
    const std::vector<float> all = RoutingWeights(*backend, {3, 1, 4}, 3, 3);
    EXPECT_THAT(all, ::testing::ElementsAre(::testing::FloatNear(e1 / sum, 1e-6),
                                            ::testing::FloatNear(e3 / sum, 1e-6),
                                            ::testing::FloatNear(1 / sum, 1e-6)));
    // By default, the softmax is over the chosen experts alone.
    EXPECT_NEAR(RoutingWeights(*backend, {3, 1, 4}, 3, 2)[2], 1 / (1 + e1), 1e-6);
    EXPECT_NEAR(RoutingWeights(*backend, {3, 1, 4}, 3, 2, ExpertWeights::kSoftmaxOfAll)[2], 1 / sum,
                1e-6);
    EXPECT_EQ(RoutingWeights(*backend, {3, 1, 4}, 3, 2, ExpertWeights::kSoftmaxOfAll)[1], 0.0f);
  }
}

TEST(MoeRoutingTest, LogisticWeightsDoNotDependOnOtherExperts) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::string& isa : IsaPaths()) {
    SCOPED_TRACE(isa);
    const auto backend = MakeBackend(isa);
    const auto weights = [&](const std::vector<float>& logits, int64_t num_chosen) {
      return RoutingWeights(*backend, logits, 3, num_chosen, ExpertWeights::kLogistic, 2.0f);
    };
    const std::vector<float> two = weights({1.5f, 0.5f, -2.0f}, 2);
    EXPECT_NEAR(two[0], 1 / (1 + std::exp(-3.0)), 1e-6);
    EXPECT_NEAR(two[1], 1 / (1 + std::exp(-1.0)), 1e-6);
    EXPECT_EQ(two[2], 0.0f);
    EXPECT_EQ(weights({1.5f, 0.5f, -2.0f}, 1)[0], two[0]);
    EXPECT_NEAR(weights({1.5f, 0.5f, -2.0f}, 3)[2], 1 / (1 + std::exp(4.0)), 1e-6);
    // The gain makes the first logit infinite. Its expert has the weight 1.
    EXPECT_EQ(weights({3e38f, 0.5f, 0.0f}, 1), (std::vector<float>{1, 0, 0}));
    EXPECT_LT(weights({3e38f, 0.5f, 0.0f}, 2)[1], infinity);
  }
}

TEST(MoeRoutingTest, NormedLogisticWeightsSumToOne) {
  const double s3 = 1 / (1 + std::exp(-3.0)), s1 = 1 / (1 + std::exp(-1.0));
  for (const std::string& isa : IsaPaths()) {
    SCOPED_TRACE(isa);
    const auto backend = MakeBackend(isa);
    const std::vector<float> two =
        RoutingWeights(*backend, {1, 3, -2}, 3, 2, ExpertWeights::kNormedLogistic);
    EXPECT_NEAR(two[0], s1 / (s1 + s3), 1e-6);
    EXPECT_NEAR(two[1], s3 / (s1 + s3), 1e-6);
    EXPECT_EQ(two[2], 0.0f);
    // The logistic values of these logits are 0 in float32.
    EXPECT_EQ(RoutingWeights(*backend, {-200, -300, -400}, 3, 2, ExpertWeights::kNormedLogistic),
              (std::vector<float>{0, 0, 0}));
    // Logits beyond 17 have the logistic value 1, so the lower id is chosen.
    EXPECT_EQ(RoutingWeights(*backend, {20, 30, 40}, 3, 1, ExpertWeights::kNormedLogistic),
              (std::vector<float>{1, 0, 0}));
  }
}

TEST(MoeRoutingTest, ExpertsAreAddedInTheRoutersOrder) {
  for (const std::string& isa : IsaPaths()) testing::ExpectRouterOrder(*MakeBackend(isa));
}

TEST(MoeRoutingTest, ManyExpertsAgreeWithASortInDouble) {
  constexpr int64_t kExperts = 130, kChosen = 18, kTokens = 5;
  const std::vector<float> logits = Normal(7, kExperts * kTokens, 3.0f);
  std::vector<float> first;
  for (const std::string& isa : IsaPaths()) {
    const auto backend = MakeBackend(isa);
    for (const bool over_chosen : {false, true}) {
      const std::vector<float> got = RoutingWeights(
          *backend, logits, kExperts, kChosen,
          over_chosen ? ExpertWeights::kSoftmaxOfChosen : ExpertWeights::kSoftmaxOfAll);
      for (int64_t t = 0; t < kTokens; ++t) {
        std::vector<float> sorted = RowsOf(logits, t, 1, kExperts);
        std::ranges::sort(sorted, std::greater<>());
        double sum = 0.0;
        for (int64_t i = 0; i < (over_chosen ? kChosen : kExperts); ++i) {
          sum += std::exp(double{sorted[static_cast<size_t>(i)]});
        }
        for (int64_t e = 0; e < kExperts; ++e) {
          const float logit = logits[static_cast<size_t>(t * kExperts + e)];
          const double want = logit >= sorted[kChosen - 1] ? std::exp(double{logit}) / sum : 0.0;
          // The bound counts the roundings of a sum over up to 130 experts. It also counts the
          // rounding of the difference of two logits. The difference is up to 20, and its error is
          // in the exponent of e^x.
          EXPECT_NEAR(got[static_cast<size_t>(t * kExperts + e)], want,
                      want * 160 * testing::kFloatEpsilon);
        }
      }
      if (first.empty()) first = got;
      EXPECT_TRUE(over_chosen || SameBits(got, first)) << isa;
    }
  }
}

TEST(MoeRoutingTest, WhatIsNotANumberStaysInItsOwnRow) {
  const float infinity = std::numeric_limits<float>::infinity();
  const TestMixture mixture(WeightType::kQ4_0, {}, 8);
  const MixtureShape& shape = mixture.shape();
  for (const std::string& isa : IsaPaths()) {
    SCOPED_TRACE(isa);
    const auto backend = MakeBackend(isa);
    // The gain of 2 makes the logits of -kLarge and kLarge infinite. In the first token, the expert
    // with logit -infinity is not chosen. In the second token, the weight of the expert with logit
    // infinity is NaN. In the third token, all logits are -infinity, which makes a weight NaN.
    constexpr float kLarge = 3e38f;
    const std::vector<float> weights = RoutingWeights(
        *backend, {1, -kLarge, 2, 0, 1, kLarge, 0, 0, -kLarge, -kLarge, -kLarge, -kLarge}, 4, 2,
        ExpertWeights::kSoftmaxOfChosen, 2.0f);
    EXPECT_NEAR(weights[2], 1 / (1 + std::exp(-2.0)), 1e-6);
    EXPECT_EQ(weights[1], 0.0f);
    EXPECT_TRUE(std::isnan(weights[4 + 1]) && std::isnan(weights[8]));

    const auto prepared = mixture.Prepare(*backend);
    std::vector<float> input = Normal(9, 7 * shape.hidden);
    const std::vector<float> clean = RunMixture(*backend, prepared, shape, input);
    for (const float bad : {std::nanf(""), infinity, -infinity}) {
      std::vector<float> spoilt = input;
      spoilt[static_cast<size_t>(3 * shape.hidden + 5)] = bad;
      const std::vector<float> out = RunMixture(*backend, prepared, shape, spoilt);
      for (int64_t i = 0; i < 7 * shape.hidden; ++i) {
        const auto at = static_cast<size_t>(i);
        if (i / shape.hidden == 3) {
          EXPECT_TRUE(std::isnan(out[at]));
        } else {
          EXPECT_EQ(out[at], clean[at]);
        }
      }
    }
  }
}

// For any routing and any other tokens in the batch, the output of a token has the same bits as if
// the token were alone.
TEST(MoePropertyTest, ATokenAmongAnyOthersGivesTheBitsOfItAlone) {
  int64_t crowded = 0, unused = 0;
  EXPECT_TRUE(rc::check([&] {
    constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kBF16, WeightType::kQ4_1,
                                     WeightType::kQ8_0};
    MixtureShape shape{.num_experts = Pick(1, 9), .hidden = 32 * Pick(1, 3)};
    shape.intermediate = 32 * Pick(1, 4);
    shape.num_chosen = Pick(1, static_cast<int>(shape.num_experts));
    shape.weights = static_cast<ExpertWeights>(Pick(0, 2));
    shape.weights_scale_input = Pick(0, 1) == 1;
    TestMixture mixture(kTypes[Pick(0, 3)], shape, static_cast<uint64_t>(Pick(1, 1000)));
    const int64_t preferred = Pick(-1, static_cast<int>(shape.num_experts) - 1);
    if (preferred >= 0) mixture.Prefer(preferred);
    const int64_t num_tokens = Pick(0, 1) == 0 ? Pick(1, 2) : Pick(3, 40);
    std::vector<float> input =
        Normal(static_cast<uint64_t>(Pick(1, 1000)), num_tokens * shape.hidden);
    for (int64_t t = 0; t < num_tokens; ++t) {
      float& first = input[static_cast<size_t>(t * shape.hidden)];
      if (preferred >= 0) first = std::abs(first) + 0.1f;
    }
    crowded += preferred >= 0 && num_tokens > 16;
    unused += num_tokens * shape.num_chosen < shape.num_experts;

    const auto backend = MakeBackend("auto", Pick(1, 3), Pick(0, 1) == 1);
    const auto weights = mixture.Prepare(*backend);
    const std::vector<float> together = RunMixture(*backend, weights, shape, input);
    for (int64_t t = 0; t < num_tokens; ++t) {
      const std::vector<float> alone =
          RunMixture(*backend, weights, shape, RowsOf(input, t, 1, shape.hidden));
      RC_ASSERT(SameBits(alone, RowsOf(together, t, 1, shape.hidden)));
    }
  }));
  EXPECT_GT(crowded, 0);
  EXPECT_GT(unused, 0);
}

TEST(MoeTest, ErrorsSayWhatWantedGot) {
  const auto backend = MakeBackend("auto");
  const TestMixture mixture(WeightType::kF32, {}, 10);
  const auto weights = mixture.Prepare(*backend);
  Owned<float> in = F32({2, 64}), out = F32({2, 64}), narrow = F32({2, 63});
  const MoeArgs good{.out = out.view,
                     .input = in.view,
                     .router = weights.router.get(),
                     .up = weights.up.get(),
                     .down = weights.down.get(),
                     .num_experts_per_token = 2};
  EXPECT_TRUE(backend->Moe(good).ok());
  const auto expect = [&](const MoeArgs& args, const char* message) {
    const absl::Status status = backend->Moe(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  MoeArgs args = good;
  args.input = narrow.view;
  expect(args, "out: want f32|f16|bf16 [2, 63], got f32 [2, 64]");
  args = good;
  args.out = in.view;
  expect(args, "out: want memory that is not the input's");
  args = good;
  args.router = nullptr;
  expect(args, "router: want a prepared weight, got none");
  args = good;
  args.up = args.down;
  expect(args, "up: want [960, 64], got [320, 96]");
  args = good;
  args.down = args.up;
  expect(args, "down: want [320, 64], got [960, 64]");
  args = good;
  args.residual = narrow.view;
  expect(args, "residual: want f32|f16|bf16 [2, 64], got f32 [2, 63]");
  for (const int64_t chosen : {0, 6}) {
    args = good;
    args.num_experts_per_token = chosen;
    expect(args, "num_experts_per_token: want 1 to 5");
  }
  args = good;
  args.activation = Activation::kGelu;
  expect(args, "activation: want a gated one");
  args.activation = Activation::kClampedSiluMul;
  expect(args, "activation_limit: want more than 0, got 0");
  args = good;
  args.router_bias = narrow.view;
  expect(args, "router_bias: want f32 [5], got f32 [2, 63]");
  args = good;
  args.choice_bias = narrow.view;
  expect(args, "choice_bias: want f32 [5], got f32 [2, 63]");
  args.choice_bias = TensorView(narrow.view.raw(), DType::kF32, {5});
  expect(args, "choice_bias: want none but with kNormedLogistic, got f32 [5]");
  args = good;
  args.up_bias = narrow.view;
  expect(args, "up_bias: want f32 [960], got f32 [2, 63]");
  args = good;
  args.down_bias = narrow.view;
  expect(args, "down_bias: want f32 [320], got f32 [2, 63]");
}

}  // namespace
}  // namespace quire::kernels
