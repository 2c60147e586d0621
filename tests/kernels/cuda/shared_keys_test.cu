// Tests attention of sequences that share their first keys: against float64, with chosen and random
// cases, and with the number of keys that it reads.

#include <cstdio>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/paged_attention_testing.h"

namespace quire::testing {
namespace {

using kernels::AttentionPattern;
using kernels::DType;

class SharedKeysTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(SharedKeysTest, AgreesWithDoublesInEveryThreadOrder) {
  EXPECT_GT(CheckInEveryOrder(GetParam()).shared_keys, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SharedKeysTest,
    ::testing::Values(
        // Two forks of a prompt, one token apart.
        AttentionCase{.sequences = {{70, 1}, {71, 1}}, .shared = {{{0, 1}, 64}}},
        // The first query after the shared keys sees no other key but its own.
        AttentionCase{.sequences = {{65, 1}, {65, 1}, {80, 1}}, .shared = {{{2, 0, 1}, 64}}},
        // Two prefixes, a decode without one and a chunk of a prompt.
        AttentionCase{.sequences = {{300, 1}, {150, 1}, {40, 1}, {290, 1}, {140, 1}, {90, 40}},
                      .num_heads = 8,
                      .num_kv_heads = 2,
                      .shared = {{{0, 3}, 256}, {{1, 4}, 128}}},
        // More members than a unit has rows for: 8 heads for each of 9.
        AttentionCase{.sequences = {{200, 1},
                                    {201, 1},
                                    {202, 1},
                                    {203, 1},
                                    {204, 1},
                                    {205, 1},
                                    {206, 1},
                                    {207, 1},
                                    {208, 1}},
                      .num_heads = 8,
                      .alibi = true,
                      .shared = {{{0, 1, 2, 3, 4, 5, 6, 7, 8}, 192}}},
        // A member that sees none of the shared keys, and others that see parts of them. The last
        // one sees the most.
        AttentionCase{.sequences = {{300, 1}, {310, 1}, {500, 1}, {250, 1}},
                      .pattern = AttentionPattern::Window(120),
                      .alibi = true,
                      .sinks = true,
                      .shared = {{{0, 1, 2, 3}, 192}}},
        // Some heads need none of the shared keys, and others a part.
        AttentionCase{.sequences = {{400, 1}, {410, 1}, {430, 1}},
                      .num_heads = 8,
                      .num_kv_heads = 4,
                      .cache_deviation = 0.1f,
                      .alibi = true,
                      .shared = {{{0, 1, 2}, 320}},
                      .skips_far_keys = true},
        AttentionCase{.sequences = {{230, 1}, {240, 1}},
                      .pattern = AttentionPattern::Chunk(150),
                      .shared = {{{0, 1}, 192}}},
        AttentionCase{.sequences = {{200, 1}, {150, 1}},
                      .num_heads = 64,
                      .num_kv_heads = 2,
                      .soft_cap = 2.0f,
                      .shared = {{{0, 1}, 128}}}));

// Decodes of the same keys, with and without shared units.
TEST(SharedKeysReadsTest, SharedKeysAreReadOnceForEach64Rows) {
  AttentionCase c{.num_heads = 8, .num_kv_heads = 2};
  constexpr int32_t kMembers = 20, kShared = 256, kOwn = 30;
  c.shared = {{{}, kShared}};
  for (int32_t i = 0; i < kMembers; ++i) {
    c.sequences.push_back({kShared + kOwn, 1});
    c.shared[0].sequences.push_back(i);
  }
  const auto device = MakeDevice();
  const AttentionAnswer together = Attend(*device, c, AttentionBatch(c));
  EXPECT_EQ(together.shared_keys, 2 * 2 * kShared);  // 2 KV heads; 16 and 4 members of 4 rows
  EXPECT_EQ(together.keys, 2 * (2 * kShared + kMembers * kOwn));
  c.shares_keys = false;
  const AttentionAnswer each = Attend(*device, c, AttentionBatch(c));
  EXPECT_EQ(each.shared_keys, 0);
  EXPECT_EQ(each.keys, 2 * kMembers * (kShared + kOwn));
}

// A layer whose decodes cannot share a unit reads shared keys for each of them.
TEST(SharedKeysReadsTest, LayersWithHolesOrMoreThan32HeadsOfAGroupShareNothing) {
  for (AttentionCase c :
       {AttentionCase{.num_heads = 33},
        AttentionCase{.head_dim = 128, .pattern = AttentionPattern::Blocks(64, 1, 3, 1)}}) {
    c.sequences = {{140, 1}, {150, 1}};
    c.shared = {{{0, 1}, 128}};
    EXPECT_EQ(CheckInEveryOrder(c).shared_keys, 0);
  }
}

AttentionCase RandomSharedCase(uint64_t seed) {
  constexpr int32_t kHeadDims[] = {32, 64, 80, 96, 112, 128, 256}, kRowTiles[] = {1, 2, 4};
  AttentionCase c = RandomAttentionCase(seed, kHeadDims, kRowTiles).attention;
  c.fixed_split_keys = 0;
  std::mt19937_64 engine(seed);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine);
  };
  if (c.num_heads / c.num_kv_heads > 32) c.num_heads = 5 * c.num_kv_heads;
  if (!c.pattern.sees_all()) c.pattern.tokens += 64;
  // The sequences of the case go on to be what they are. Those that share come between them.
  const int32_t unit = std::max(64, c.block_size);
  for (int32_t prefix = between(1, 2); prefix > 0; --prefix) {
    SharedPrefix& shared = c.shared.emplace_back();
    shared.num_keys = unit * between(1, 3);
    for (int32_t member = between(2, 7); member > 0; --member) {
      const auto at = static_cast<int32_t>(c.sequences.size());
      c.sequences.push_back({shared.num_keys + between(1, 90), 1});
      shared.sequences.insert(
          shared.sequences.begin() + between(0, static_cast<int32_t>(shared.sequences.size())), at);
      if (between(0, 3) == 0) c.sequences.push_back({between(1, 40), between(0, 1)});
    }
  }
  return c;
}

TEST(SharedKeysRandomTest, AnyMixOfFeaturesAgreesWithDoubles) {
  constexpr uint64_t kCases = QUIRE_RANDOM_CASES;
  double worst = 0.0;
  int num_shared = 0;
  std::set<int32_t> row_tiles_seen;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const AttentionCase c = RandomSharedCase(seed);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << c);
    const AttentionAnswer answer = CheckInEveryOrder(c, {.seed = seed, .worst = &worst});
    num_shared += answer.shared_keys > 0 ? 1 : 0;
    row_tiles_seen.insert(answer.row_tiles.begin(), answer.row_tiles.end());
    if (HasFailure()) return;
  }
  std::printf("%d cases, %d with shared units, the worst error %.2f of its bound\n",
              static_cast<int>(kCases), num_shared, worst);
  EXPECT_GE(num_shared * 10, static_cast<int>(kCases) * 8);
  if (kCases < 12) return;
  EXPECT_EQ(row_tiles_seen.size(), 4u);
}

}  // namespace
}  // namespace quire::testing
