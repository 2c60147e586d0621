// Tests that attention leaves out the keys beyond the horizon (attn_horizon.cuh), and no other key.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/paged_attention_testing.h"

namespace quire::testing {
namespace {

using kernels::AttentionPattern;
using kernels::DType;

// A decode whose near keys are opposite to its query, and whose far keys, from a distance on, are
// aligned with it, all with the largest norm. So the far keys have the largest weight that the
// bound allows: e^(2 bound - slope * distance) of that of the near keys. Near values are 0 and far
// ones kFarValue, so the output is the weight of the far keys.
struct Adversary {
  static constexpr float kFarValue = 256.0f;

  AttentionCase attention;
  double bound = 0.0;   // of a score; with a soft cap, at most the cap
  int32_t far_row = 0;  // a head of the group; the others have a slope of 2
  double slope = 0.0;   // of this head
  float sign = 1.0f;    // of the scale
  int32_t distance = 0;

  // Returns the distance beyond which keys weigh 2^-bits of all.
  int32_t DistanceOf(double bits) const {
    return static_cast<int32_t>(std::ceil((2 * bound + bits * std::log(2.0)) / slope));
  }
  // `context` must be more than `distance`.
  AttentionBatch Batch(int32_t context) {
    AttentionCase& c = attention;
    c.sequences = {{context, 1}};
    c.alibi = c.skips_far_keys = true;
    c.slopes.assign(static_cast<size_t>(c.num_heads), 2.0f);
    c.slopes[static_cast<size_t>(far_row)] = static_cast<float>(slope);
    c.scale = sign / static_cast<float>(c.head_dim);
    AttentionBatch batch(c);
    for (int64_t head = 0; head < c.num_heads; ++head) batch.SetQuery(0, 0, head, 1.0f);
    // With a soft cap, a score of four times the cap becomes nearly the cap.
    const auto element =
        sign * static_cast<float>(c.soft_cap > 0.0f ? 4 * bound : bound) / c.cache_scales.k;
    for (int32_t key = 0; key < context; ++key) {
      const bool is_far = context - 1 - key >= distance;
      batch.SetKeyAndValue(0, key, c.num_kv_heads - 1, is_far ? element : -element,
                           is_far ? kFarValue : 0.0f);
      if (c.num_kv_heads > 1) batch.SetKeyAndValue(0, key, 0, element / 16, 0.0f);
    }
    return batch;
  }
};

// NaN if one of the numbers is.
float LargestOf(const std::vector<float>& out) {
  float largest = 0.0f;
  for (const float x : out) {
    if (std::isnan(x)) return x;
    largest = std::max(largest, x);
  }
  return largest;
}

struct HorizonShape {
  double bound, slope;
  int32_t head_dim;
  DType dtype;
  DType cache_dtype = dtype;
  float soft_cap = 0.0f;
  float k_scale = 1.0f;

  Adversary Make() const {
    return {.attention = {.num_heads = 1,
                          .head_dim = head_dim,
                          .dtype = dtype,
                          .cache_dtype = cache_dtype,
                          .soft_cap = soft_cap,
                          .cache_scales = {.k = k_scale}},
            .bound = bound,
            .slope = slope};
  }
};

class HorizonTest : public ::testing::TestWithParam<HorizonShape> {};

// A tile has 64 * slope / ln(2) bits of the weight, less than half a bit here.
TEST_P(HorizonTest, KeysThatWeighMoreThanTwoToTheMinus24AreRead) {
  const auto device = MakeDevice();
  for (const double bits : {4.0, 16.0, 20.0, 22.0, 23.0}) {
    Adversary adversary = GetParam().Make();
    adversary.distance = adversary.DistanceOf(bits);
    const AttentionBatch batch = adversary.Batch(adversary.distance + 700);
    SCOPED_TRACE(bits);
    const std::vector<float> out = Attend(*device, adversary.attention, batch).out;
    batch.Check(out, AttentionWeights::kRounded);
    EXPECT_GT(LargestOf(out), 0.8 * (std::exp2(-bits) - 0x1p-24) * Adversary::kFarValue);
  }
}

TEST_P(HorizonTest, KeysThatWeighLessAreNotRead) {
  const auto device = MakeDevice();
  Adversary adversary = GetParam().Make();
  adversary.distance = adversary.DistanceOf(25.0);
  const AttentionBatch batch = adversary.Batch(adversary.distance + 700);
  AttentionBatch poisoned = batch;
  EXPECT_GT(poisoned.PoisonFarKeys(), 600);
  batch.Check(Attend(*device, adversary.attention, poisoned).out, AttentionWeights::kRounded);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HorizonTest,
    ::testing::Values(HorizonShape{3.0, 1.0 / 256, 64, DType::kBF16},
                      HorizonShape{10.0, 1.0 / 64, 128, DType::kF16},
                      HorizonShape{0.0, 1.0 / 128, 80, DType::kBF16},
                      HorizonShape{2.0, 1.0 / 128, 32, DType::kBF16},
                      HorizonShape{5.0, 1.0 / 128, 64, DType::kBF16, DType::kBF16, 5.0f},
                      HorizonShape{4.0, 1.0 / 128, 128, DType::kBF16, DType::kF8E4M3},
                      HorizonShape{4.0, 1.0 / 128, 128, DType::kBF16, DType::kF8E4M3, 0.0f, 4.0f},
                      HorizonShape{4.0, 1.0 / 128, 64, DType::kF16, DType::kF8E4M3, 0.0f, 0.25f}));

// The keys of the other KV head are much shorter.
TEST(HorizonRowsTest, ANormIsThatOfTheKvHead) {
  Adversary adversary{.attention = {.num_heads = 2, .num_kv_heads = 2},
                      .bound = 8.0,
                      .far_row = 1,
                      .slope = 1.0 / 32};
  adversary.distance = adversary.DistanceOf(20.0);
  const AttentionBatch batch = adversary.Batch(adversary.distance + 80);
  const AttentionAnswer answer = Attend(*MakeDevice(), adversary.attention, batch);
  batch.Check(answer.out, AttentionWeights::kRounded);
  EXPECT_GT(LargestOf(answer.out), std::exp2(-21.0) * Adversary::kFarValue);
}

TEST(HorizonRowsTest, ANegativeScaleBoundsScoresAsWell) {
  Adversary adversary{
      .attention = {.num_heads = 1}, .bound = 8.0, .slope = 1.0 / 32, .sign = -1.0f};
  adversary.distance = adversary.DistanceOf(20.0);
  const AttentionBatch batch = adversary.Batch(adversary.distance + 80);
  const AttentionAnswer answer = Attend(*MakeDevice(), adversary.attention, batch);
  batch.Check(answer.out, AttentionWeights::kRounded);
  EXPECT_GT(LargestOf(answer.out), std::exp2(-21.0) * Adversary::kFarValue);
}

// Each row of a tile, in whichever lane and warp, is heard: all others need fewer keys.
TEST(HorizonRowsTest, TheRowThatSeesFarthestDecides) {
  const auto device = MakeDevice();
  for (const auto& [heads, rows] :
       {std::pair(16, std::vector{0, 3, 8, 15}), {32, {5, 17, 31}}, {64, {0, 21, 38, 63}}}) {
    for (const int32_t row : rows) {
      Adversary adversary{
          .attention = {.num_heads = heads}, .bound = 3.0, .far_row = row, .slope = 1.0 / 32};
      adversary.distance = adversary.DistanceOf(20.0);
      const AttentionBatch batch = adversary.Batch(adversary.distance + 80);
      SCOPED_TRACE(row);
      const AttentionAnswer answer = Attend(*device, adversary.attention, batch);
      batch.Check(answer.out, AttentionWeights::kRounded);
      EXPECT_GT(LargestOf(answer.out), std::exp2(-21.0) * Adversary::kFarValue);
    }
  }
}

// With each of these, no distance is far enough, and with the last one, every distance is.
TEST(HorizonRowsTest, WithoutABoundOrASlopeAllKeysAreRead) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto device = MakeDevice();
  const auto worst_key = [&](AttentionCase c, float query) {
    c.sequences = {{700, 1}};
    c.num_heads = 1;
    c.alibi = c.skips_far_keys = true;
    AttentionBatch batch(c);
    batch.SetQuery(0, 0, 0, query);
    batch.SetKeyAndValue(0, 0, 0, 1.0f, std::nanf(""));
    return LargestOf(Attend(*device, c, batch).out);
  };
  EXPECT_TRUE(std::isnan(worst_key({.key_norm = kInfinity, .slopes = {1.0f}}, 1.0f)));
  EXPECT_TRUE(std::isnan(worst_key({.key_norm = kInfinity, .slopes = {1.0f}}, 0.0f)));
  EXPECT_TRUE(std::isnan(worst_key({.key_norm = 1.0f, .slopes = {0.0f}}, 1.0f)));
  EXPECT_TRUE(std::isnan(worst_key({.key_norm = 1.0f, .slopes = {-1.0f}}, 1.0f)));
  EXPECT_TRUE(std::isnan(worst_key({.key_norm = 1.0f, .slopes = {1.0f}}, kInfinity)));
  EXPECT_FALSE(std::isnan(worst_key({.key_norm = 1.0f, .slopes = {1.0f}}, 1.0f)));
  for (const float query : {0.0f, 1.0f}) {
    EXPECT_TRUE(
        std::isnan(worst_key({.soft_cap = 5.0f, .key_norm = kInfinity, .slopes = {1.0f}}, query)));
  }
  // A cap bounds scores that norms do not.
  EXPECT_FALSE(
      std::isnan(worst_key({.soft_cap = 5.0f, .key_norm = 1e30f, .slopes = {1.0f}}, 1.0f)));
}

// Wider heads, and patterns with lists of tiles, have no horizon.
TEST(HorizonRowsTest, OtherKernelsReadAllKeys) {
  for (AttentionCase c :
       {AttentionCase{.head_dim = 256},
        AttentionCase{.head_dim = 128, .pattern = AttentionPattern::Blocks(64, 1, 3, 1)}}) {
    c.sequences = {{500, 1}, {90, 40}};
    c.alibi = c.skips_far_keys = true;
    c.slopes.assign(4, 8.0f);
    CheckInEveryOrder(c);
    AttentionBatch batch(c);
    batch.SetKeyAndValue(0, 64, 0, 1.0f, std::nanf(""));
    EXPECT_TRUE(std::isnan(LargestOf(Attend(*MakeDevice(), c, batch).out)));
  }
}

// Blocks draw all ranges of items in each of several launches of one plan. The launches have other
// numbers, because partial results stay in memory.
TEST(DrawnRangesTest, EveryLaunchOfAPlanComputesEveryItem) {
  const auto with_seed = [](uint64_t seed) {
    return AttentionCase{
        .sequences = {{900, 1, seed}, {2, 1, seed + 1}, {150, 30, seed + 2}, {400, 1, seed + 3}},
        .num_heads = 6,
        .num_kv_heads = 2,
        .alibi = true,
        .skips_far_keys = true};
  };
  const AttentionBatch batches[] = {AttentionBatch(with_seed(1)), AttentionBatch(with_seed(11)),
                                    AttentionBatch(with_seed(21))};
  for (const ThreadOrder order : kAllThreadOrders) {
    const auto device = MakeDevice(order);
    kernels::cuda::PagedAttentionOp op(*device, {.skips_far_keys = true});
    const auto plan = op.Plan(batches[0].PlanArgs());
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    for (const AttentionBatch& batch : batches) {
      AttentionOnDevice on_device(*device, batch);
      on_device.args.plan = *plan;
      ASSERT_TRUE(op.Run(on_device.args).ok());
      batch.Check(on_device.out.ToHost(), AttentionWeights::kRounded);
    }
  }
}

TEST(FarKeysRandomTest, AnyMixOfFeaturesAgreesWithDoublesAndReadsNoFarTile) {
  constexpr int32_t kHeadDims[] = {32, 64, 80, 96, 112, 128}, kRowTiles[] = {1, 2, 4};
  constexpr uint64_t kCases = QUIRE_RANDOM_CASES;
  double worst = 0.0;
  int num_skipping = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    auto [c, pinned] = RandomAttentionCase(seed, kHeadDims, kRowTiles);
    std::mt19937_64 engine(seed);
    const auto between = [&](float low, float high) {
      return std::uniform_real_distribution<float>(low, high)(engine);
    };
    c.fixed_split_keys = 0;
    c.alibi = c.skips_far_keys = true;
    if (!c.pattern.sees_all()) c.pattern.tokens += 200;
    c.cache_deviation = between(0.05f, 0.6f);
    const float steepest = between(0.2f, 2.0f);
    for (int32_t head = 0; head < c.num_heads; ++head) {
      c.slopes.push_back(steepest * between(0.5f, 1.0f));
    }
    c.sequences[pinned].context_len += 400;
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << c);
    const AttentionBatch batch(c);
    AttentionBatch poisoned = batch;
    num_skipping += poisoned.PoisonFarKeys() > 0 ? 1 : 0;
    const auto device = MakeDevice(kAllThreadOrders[seed % 3], seed);
    const AttentionAnswer answer = Attend(*device, c, poisoned);
    worst = std::max(worst, batch.Check(answer.out, AttentionWeights::kRounded));
    if (HasFailure()) return;
  }
  std::printf("%d cases, %d with far tiles, the worst error %.2f of its bound\n",
              static_cast<int>(kCases), num_skipping, worst);
  EXPECT_GE(num_skipping * 10, static_cast<int>(kCases) * 8);
}

}  // namespace
}  // namespace quire::testing
