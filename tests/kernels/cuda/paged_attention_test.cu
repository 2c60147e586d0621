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
using kernels::cuda::kAttentionRowTiles;

class CudaPagedAttentionTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(CudaPagedAttentionTest, AgreesWithDoublesInEveryThreadOrder) {
  CheckInEveryOrder(GetParam());
}

constexpr DType kF16 = DType::kF16;
// bench/gpu/run_all.sh names some of these cases by their index.
INSTANTIATE_TEST_SUITE_P(
    Cases, CudaPagedAttentionTest,
    ::testing::Values(
        // The lengths differ, and the long sequence is cut into pieces.
        AttentionCase{.sequences = {{1, 1}, {15, 1}, {16, 1}, {17, 1}, {300, 1}}},
        AttentionCase{.sequences = {{200, 1}, {3, 1}},
                      .num_heads = 8,
                      .num_kv_heads = 2,
                      .head_dim = 128,
                      .block_size = 32,
                      .dtype = kF16},
        AttentionCase{
            .sequences = {{130, 1}}, .num_heads = 2, .num_kv_heads = 2, .block_size = 64},  // MHA
        // GQA with groups of 3, and a decode of 3 tokens, as in speculative decoding.
        AttentionCase{
            .sequences = {{70, 1}, {40, 3}}, .num_heads = 3, .block_size = 128, .dtype = kF16},
        AttentionCase{.sequences = {{90, 1}}, .num_heads = 32},  // two row tiles
        AttentionCase{
            .sequences = {{300, 1}, {20, 1}}, .num_heads = 8, .head_dim = 128, .alibi = true},
        AttentionCase{.sequences = {{400, 1}, {65, 1}}, .pattern = AttentionPattern::Window(100)},
        AttentionCase{.sequences = {{400, 1}, {65, 1}}, .pattern = AttentionPattern::Chunk(100)},
        // Rows of one tile are in up to three chunks.
        AttentionCase{.sequences = {{70, 70}, {140, 40}, {33, 1}},
                      .num_heads = 4,
                      .num_kv_heads = 2,
                      .pattern = AttentionPattern::Chunk(32),
                      .alibi = true},
        AttentionCase{.sequences = {{300, 1}, {1, 1}}, .dtype = kF16, .sinks = true},
        AttentionCase{.sequences = {{80, 1}}, .soft_cap = 2.0f},
        // One step has a whole prompt, a chunk of a longer prompt, and a decode.
        AttentionCase{
            .sequences = {{70, 70}, {140, 40}, {33, 1}}, .num_heads = 4, .num_kv_heads = 2},
        AttentionCase{.sequences = {{90, 90}, {17, 1}},
                      .num_heads = 4,
                      .num_kv_heads = 2,
                      .head_dim = 128,
                      .pattern = AttentionPattern::Window(37),
                      .soft_cap = 30.0f,
                      .alibi = true,
                      .sinks = true},
        AttentionCase{.sequences = {{1100, 1}}, .alibi = true, .fixed_split_keys = 1024},
        // The first sequence has one unit, and the second has two.
        AttentionCase{.sequences = {{70, 1}, {33, 2}}, .num_heads = 64},
        // More heads than a unit has rows.
        AttentionCase{.sequences = {{70, 2}, {150, 1}}, .num_heads = 71, .alibi = true},
        AttentionCase{.sequences = {{90, 1}},
                      .num_heads = 142,
                      .num_kv_heads = 2,
                      .dtype = kF16,
                      .sinks = true},
        AttentionCase{.sequences = {{80, 1}, {90, 30}}, .scale = 1.0f / 64},
        AttentionCase{.sequences = {{80, 1}, {90, 30}}, .soft_cap = 2.0f, .scale = 0.3f},
        // Sequences without a query come before, between and after the others.
        AttentionCase{.sequences = {{40, 0}, {70, 70}, {20, 0}, {33, 1}, {50, 0}},
                      .num_heads = 4,
                      .num_kv_heads = 2,
                      .pattern = AttentionPattern::Window(30)},
        // The query at position 127 sees the keys from 64 on, and the query at 128 the keys from 65
        // on. So key 64 is the only key of its tile that the second query must not see.
        AttentionCase{.sequences = {{129, 2}}, .pattern = AttentionPattern::Window(64)},
        // The first query ends its chunk, and the second begins the next chunk.
        AttentionCase{.sequences = {{129, 2}}, .pattern = AttentionPattern::Chunk(64)}));

template <typename T>
T Pick(std::mt19937_64& engine, std::initializer_list<T> values) {
  return values.begin()[std::uniform_int_distribution<size_t>(0, values.size() - 1)(engine)];
}

constexpr int32_t kHeadDims[] = {32, 64, 80, 96, 112, 128, 256};

struct RandomCase {
  AttentionCase attention;
  // The index of the sequence whose query length requires the row tile of the seed. With a fixed
  // split, its context is long enough to be cut into pieces.
  size_t pinned = 0;
};

// Chooses head_dim, block_size and row tile by `seed` modulo 7, 4 and 3. The dtype alternates from
// seed to seed, and the alternation is reversed every 28 seeds. So the seeds 0 to 55 give every
// combination of head_dim, block_size and dtype. The seeds 0 to 83 give every combination of
// head_dim, row tile and dtype.
RandomCase MakeRandomCase(uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine);
  };
  const auto often = [&] { return between(0, 2) == 0; };
  RandomCase random;
  AttentionCase& c = random.attention;
  c.head_dim = kHeadDims[seed % 7];
  c.dtype = (seed + seed / 28) % 2 == 0 ? DType::kBF16 : DType::kF16;
  c.block_size = 16 << seed % 4;
  const int32_t row_tiles = kAttentionRowTiles[seed % 3];
  int32_t group = 0;
  do {
    group = Pick(engine, {1, 2, 3, 4, 5, 8, 16, 17, 32, 64, 71});
  } while (row_tiles < 4 && group > 16 * row_tiles);
  c.num_kv_heads = between(1, 2);
  c.num_heads = c.num_kv_heads * group;
  if (often()) c.fixed_split_keys = Pick(engine, {64, 128});
  // With a fixed split, a window has at least 130 keys and a piece at most 128, so the window is
  // cut into pieces. A fixed split is not tested with chunks: a query near the start of its chunk
  // sees too few keys to be cut.
  if (often()) {
    c.pattern = c.fixed_split_keys > 0 ? AttentionPattern::Window(between(130, 200))
                : seed % 2 == 0        ? AttentionPattern::Window(between(1, 120))
                                       : AttentionPattern::Chunk(between(1, 120));
  }
  if (often()) c.soft_cap = Pick(engine, {2.0f, 30.0f});
  if (often()) c.scale = Pick(engine, {1.0f / static_cast<float>(c.head_dim), 0.05f, 0.3f});
  c.alibi = often() || often();
  c.sinks = often();
  c.second_half = often();

  // A wide group makes many rows from few queries.
  const int32_t most_queries = std::max(1, 96 / group);
  const int32_t num_seqs = c.fixed_split_keys > 0 ? between(2, 4) : between(1, 3);
  for (int32_t i = 0; i < num_seqs; ++i) {
    const int32_t context = Pick(engine, {between(1, 40), between(1, 40), between(60, 260)});
    const int32_t query = often() ? between(0, 1) : between(1, std::min(context, most_queries));
    c.sequences.push_back({context, query, static_cast<uint64_t>(i) + 1});
  }
  random.pinned = static_cast<size_t>(between(0, num_seqs - 1));
  AttentionSequence& pinned = c.sequences[random.pinned];
  const int32_t fewest = row_tiles == 1 ? 1 : 8 * row_tiles / group + 1;
  const int32_t most = row_tiles == 4 ? most_queries : 16 * row_tiles / group;
  pinned.query_len = between(fewest, std::max(fewest, most));
  pinned.context_len =
      std::max(pinned.query_len, c.fixed_split_keys > 0 ? between(200, 260) : pinned.context_len);
  return random;
}

TEST(CudaPagedAttentionBatchTest, AnyMixOfFeaturesAgreesWithDoublesOnEveryKernel) {
  constexpr uint64_t kCases = QUIRE_RANDOM_CASES;
  double worst = 0.0;
  int32_t num_fixed = 0;
  std::set<std::tuple<DType, int32_t, int32_t>> kernels_seen, shapes_seen;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const auto [c, pinned] = MakeRandomCase(seed);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << c);
    const AttentionAnswer answer = CheckInEveryOrder(c, {.seed = seed, .worst = &worst});
    for (const int32_t row_tiles : answer.row_tiles) {
      kernels_seen.insert({c.dtype, c.head_dim, row_tiles});
    }
    shapes_seen.insert({c.dtype, c.head_dim, c.block_size});
    if (c.fixed_split_keys > 0) {
      // The pinned sequence must have the same bits alone as among the other sequences.
      ++num_fixed;
      AttentionCase alone = c;
      alone.sequences = {c.sequences[pinned]};
      const AttentionBatch crowd(c), single(alone);
      const auto device = MakeDevice(kAllThreadOrders[seed % 3], seed);
      const AttentionAnswer want = Attend(*device, alone, single);
      EXPECT_TRUE(SameBits(crowd.RowsOf(pinned, answer.out), want.out));
      EXPECT_GT(want.num_partial_rows, 0);
      EXPECT_GT(want.merges[0], 0);
      EXPECT_EQ(answer.merges[pinned], want.merges[0]);
    }
    if (HasFailure()) return;
  }
  std::printf("%d cases, %d with a fixed split, on %d kernels, the worst error %.2f of its bound\n",
              static_cast<int>(kCases), num_fixed, static_cast<int>(kernels_seen.size()), worst);
  EXPECT_GT(num_fixed, 0);
  if (kCases < 84) return;
  EXPECT_EQ(kernels_seen.size(), 40u);  // resources.tsv lists as many, and those of listed tiles
  EXPECT_EQ(shapes_seen.size(), 56u);
}

// Runs every kernel that reads listed tiles, with 1, 2 and 4 row tiles. The cases are decodes and
// prompt chunks, with equal cuts or a fixed split. Most heads see different blocks.
TEST(CudaPagedAttentionBatchTest, EveryKernelOfListedTilesAgreesWithDoubles) {
  std::set<std::tuple<DType, int32_t>> kernels_seen;
  int num_cut = 0;
  double worst = 0.0;
  for (const DType dtype : {DType::kBF16, kF16}) {
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
        for (const int32_t row_tiles : answer.row_tiles) kernels_seen.insert({dtype, row_tiles});
        num_cut += answer.num_partial_rows > 0 ? 1 : 0;
        if (HasFailure()) return;
      }
    }
  }
  std::printf("the worst error %.2f of its bound\n", worst);
  EXPECT_EQ(kernels_seen.size(), 6u);
  EXPECT_GE(num_cut, 10);
}

TEST(CudaPagedAttentionBatchTest, PiecesOfEqualCutsAreMerged) {
  const AttentionCase c{.sequences = {{1, 1}, {15, 1}, {16, 1}, {17, 1}, {300, 1}}};
  const auto device = MakeDevice();
  EXPECT_GT(Attend(*device, c, AttentionBatch(c)).merges[4], 0);
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
