// Tests attention on tensor cores against float64, with chosen cases, and with random cases that
// use every kernel.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/paged_attention_testing.h"

namespace quire::testing {
namespace {

using kernels::AttentionPattern;
using kernels::DType;

class CudaPagedAttentionTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(CudaPagedAttentionTest, AgreesWithDoublesInEveryThreadOrder) {
  CheckInEveryOrder(GetParam());
}

// bench/gpu/run_all.sh names some of these cases by their index.
INSTANTIATE_TEST_SUITE_P(Cases, CudaPagedAttentionTest,
                         ::testing::ValuesIn(ChosenAttentionCases()));

constexpr int32_t kHeadDims[] = {32, 64, 80, 96, 112, 128, 256};
// Five entries, which share no factor with the numbers of head_dims and block_sizes.
constexpr int32_t kRowTiles[] = {1, 2, 4, 8, 8};

TEST(CudaPagedAttentionBatchTest, TheLastRowOfAnItemOfEachSizeAgreesWithDoubles) {
  double worst = 0.0;
  for (const auto& [num_rows, sizes] : {std::pair(15, std::set{1}),
                                        {16, {1}},
                                        {17, {2}},
                                        {32, {2}},
                                        {33, {4}},
                                        {64, {4}},
                                        {65, {8}},
                                        {127, {8}},
                                        {128, {8}},
                                        {129, {1, 8}},
                                        {193, {8}},
                                        {300, {4, 8}}}) {
    for (const int32_t head_dim : {64, 128}) {
      SCOPED_TRACE(num_rows);
      EXPECT_EQ(CheckInEveryOrder(WithRows(num_rows, 1, head_dim), {.worst = &worst}).row_tiles,
                sizes);
    }
    if (HasFailure()) return;
  }
  std::printf("the worst error %.2f of its bound\n", worst);
}

TEST(CudaPagedAttentionBatchTest, WideItemsWithEveryFeatureAgreeWithDoubles) {
  double worst = 0.0;
  for (const AttentionCase& c : WideAttentionCases(std::vector{64, 96, 128})) {
    SCOPED_TRACE(::testing::Message() << c);
    EXPECT_TRUE(CheckInEveryOrder(c, {.worst = &worst}).row_tiles.contains(8));
    if (HasFailure()) return;
  }
  std::printf("the worst error %.2f of its bound\n", worst);
}

TEST(CudaPagedAttentionBatchTest, AnyMixOfFeaturesAgreesWithDoublesOnEveryKernel) {
  constexpr uint64_t kCases = QUIRE_RANDOM_CASES;
  double worst = 0.0;
  int32_t num_fixed = 0;
  std::set<std::tuple<DType, int32_t, int32_t>> sizes_seen, shapes_seen;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const auto [c, pinned] = RandomAttentionCase(seed, kHeadDims, kRowTiles);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << c);
    const AttentionAnswer answer = CheckInEveryOrder(c, {.seed = seed, .worst = &worst});
    for (const int32_t row_tiles : answer.row_tiles) {
      sizes_seen.insert({c.dtype, c.head_dim, row_tiles});
    }
    shapes_seen.insert({c.dtype, c.head_dim, c.block_size});
    if (c.fixed_split_keys > 0) {
      ++num_fixed;
      CheckSameAlone(c, pinned, answer, {.seed = seed});
    }
    if (HasFailure()) return;
  }
  std::printf("%d cases, %d with a fixed split, of %d sizes, the worst error %.2f of its bound\n",
              static_cast<int>(kCases), num_fixed, static_cast<int>(sizes_seen.size()), worst);
  if (kCases < 84) return;
  EXPECT_GT(num_fixed, 0);
  EXPECT_EQ(sizes_seen.size(), 52u);
  EXPECT_EQ(shapes_seen.size(), 56u);
}

// Runs both kernels that read listed tiles, with items of 1, 2 and 4 row tiles. The cases are
// decodes and prompt chunks, with equal cuts or a fixed split. Most heads see different blocks.
TEST(CudaPagedAttentionBatchTest, EveryKernelOfListedTilesAgreesWithDoubles) {
  std::set<std::tuple<DType, int32_t>> sizes_seen;
  int num_cut = 0;
  double worst = 0.0;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int32_t fixed_split_keys : {0, 64}) {
      for (const AttentionCase& c : {
               AttentionCase{.sequences = {{700, 1}, {449, 1}, {448, 2}, {63, 3}, {64, 1}, {65, 1}},
              .num_kv_heads = 2,
              .pattern = AttentionPattern::Blocks(64, 1, 4, 1),
              .sinks = true},
               AttentionCase{.sequences = {{600, 5}, {330, 70}, {500, 1}, {20, 0}},
               .pattern = AttentionPattern::Blocks(64, 2, 8, 1)},
               AttentionCase{.sequences = {{400, 40}, {900, 1}},
               .num_heads = 3,
               .num_kv_heads = 3,
               .block_size = 32,
               .pattern = AttentionPattern::Blocks(128, 1, 5, 2),
               .soft_cap = 30.0f,
               .alibi = true},
               // More heads than a unit has rows, and heads that see the same blocks.
               AttentionCase{.sequences = {{300, 2}, {450, 1}},
               .num_heads = 71,
               .pattern = AttentionPattern::Blocks(64, 1, 80, 1)},
               AttentionCase{.sequences = {{520, 1}, {270, 8}},
               .num_heads = 8,
               .num_kv_heads = 2,
               .pattern = AttentionPattern::Blocks(64, 1, 3, 0)},
           }) {
        AttentionCase listed = c;
        listed.dtype = dtype;
        listed.head_dim = 128;
        listed.fixed_split_keys = fixed_split_keys;
        SCOPED_TRACE(::testing::Message() << listed);
        const AttentionAnswer answer = CheckInEveryOrder(listed, {.worst = &worst});
        for (const int32_t row_tiles : answer.row_tiles) sizes_seen.insert({dtype, row_tiles});
        num_cut += answer.num_partial_rows > 0 ? 1 : 0;
        if (HasFailure()) return;
      }
    }
  }
  std::printf("the worst error %.2f of its bound\n", worst);
  EXPECT_EQ(sizes_seen.size(), 6u);
  EXPECT_GE(num_cut, 10);
}

TEST(CudaPagedAttentionBatchTest, PiecesOfEqualCutsAreMerged) {
  const AttentionCase c{.sequences = {{1, 1}, {15, 1}, {16, 1}, {17, 1}, {300, 1}}};
  const auto device = MakeDevice();
  EXPECT_GT(Attend(*device, c, AttentionBatch(c)).merges[4], 0);
}

// Computes the last queries of a sequence in one chunk, then in random chunks, many of one token,
// in a step with another sequence and with other blocks. A row must have the same bits both times.
TEST(CudaPagedAttentionBatchTest, AFixedSplitGivesARowItsBitsInEveryStep) {
  constexpr uint64_t kCases = QUIRE_RANDOM_CASES;
  int num_decodes = 0, num_chunks = 0, num_in_parts = 0;
  std::set<std::tuple<DType, int32_t, bool>> kernels_seen;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    std::mt19937_64 engine(seed);
    const auto between = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(engine);
    };
    AttentionCase c = RandomAttentionCase(seed, kHeadDims, kRowTiles).attention;
    if (c.fixed_split_keys == 0) c.fixed_split_keys = 64;
    if (c.head_dim == 128 && between(0, 1) == 0) c.pattern = AttentionPattern::Blocks(64, 1, 3, 1);
    const int32_t group = c.num_heads / c.num_kv_heads;
    const int32_t context_len = between(60, 300);
    const int32_t num_queries = std::min(context_len, 100 / group + 2);
    const int32_t start = context_len - num_queries;
    c.sequences = {{context_len, num_queries, 7}};
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << c);
    const AttentionBatch whole(c);
    const auto device = MakeDevice(kAllThreadOrders[seed % 3], seed);
    const std::vector<float> want = Attend(*device, c, whole).out;
    whole.Check(want, AttentionWeights::kRounded);

    AttentionCase parts = c;
    parts.sequences.clear();
    for (int32_t first = 0; first < num_queries;) {
      const int32_t most = num_queries - first;
      const int32_t count = between(0, 2) > 0 ? 1 : between(1, most);
      parts.sequences.push_back({start + first + count, count, 7, first});
      first += count;
      (count == 1 ? num_decodes : num_chunks) += 1;
    }
    parts.sequences.push_back({50, 9, 5});
    std::ranges::shuffle(parts.sequences, engine);
    parts.block_size = 16 << between(0, 3);
    parts.part_rows = between(0, 1) == 0 ? between(1, 400) : c.part_rows;
    const AttentionBatch batch(parts);
    const AttentionAnswer got = Attend(*device, parts, batch);
    num_in_parts += got.num_parts > 1 ? 1 : 0;
    for (size_t i = 0; i < parts.sequences.size(); ++i) {
      const AttentionSequence& part = parts.sequences[i];
      if (part.seed != 7) continue;
      const auto row = std::ssize(want) / num_queries;
      EXPECT_TRUE(SameBits(batch.RowsOf(i, got.out),
                           {want.begin() + part.queries_before * row,
                            want.begin() + (part.queries_before + part.query_len) * row}))
          << "positions " << start + part.queries_before << " on, " << part.query_len;
    }
    kernels_seen.insert({c.dtype, c.head_dim, c.pattern.has_holes()});
    if (HasFailure()) return;
  }
  std::printf("%d decodes and %d chunks, %d steps in parts\n", num_decodes, num_chunks,
              num_in_parts);
  EXPECT_GT(num_decodes, 0);
  EXPECT_GT(num_chunks, 0);
  if (kCases < 84) return;
  EXPECT_GT(num_in_parts, 0);
  EXPECT_EQ(kernels_seen.size(), 2u * 8);
}

TEST(CudaPagedAttentionBatchTest, AFixedSplitOfItsUsualLengthDoesNotDependOnTheBatch) {
  AttentionCase alone{.sequences = {{1100, 1, 7}}, .alibi = true, .fixed_split_keys = 1024};
  AttentionCase many = alone;
  many.sequences = {{50, 20}, {1100, 1, 7}, {333, 1}};
  const AttentionBatch crowd(many);
  const auto device = MakeDevice();
  const AttentionAnswer want = Attend(*device, alone, AttentionBatch(alone));
  EXPECT_EQ(want.merges, std::vector<int32_t>{1});
  EXPECT_TRUE(SameBits(crowd.RowsOf(1, Attend(*device, many, crowd).out), want.out));
}

}  // namespace
}  // namespace quire::testing
