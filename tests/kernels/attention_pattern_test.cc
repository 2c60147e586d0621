#include "kernels/ops/attention_pattern.h"

#include <algorithm>
#include <rapidcheck.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/ops/attention_tiles.h"
#include "kernels/ops/paged_attention.h"
#include "tests/testing/seen_keys.h"

namespace quire::kernels {
namespace {

using ::testing::HasSubstr;
using testing::Sees;

TEST(AttentionPatternTest, EveryAnswerFollowsFromTheDefinitionOfTheRule) {
  for (const AttentionPattern& pattern :
       {AttentionPattern(), AttentionPattern::Window(1), AttentionPattern::Window(2),
        AttentionPattern::Window(7), AttentionPattern::Window(64), AttentionPattern::Chunk(1),
        AttentionPattern::Chunk(2), AttentionPattern::Chunk(7), AttentionPattern::Chunk(64)}) {
    int64_t most = 0;
    for (int64_t query = 0; query < 200; ++query) {
      const int64_t first = pattern.FirstKey(query);
      for (int64_t key = 0; key < 200; ++key) {
        ASSERT_EQ(Sees(pattern, query, key), first <= key && key <= query)
            << ToString(pattern) << ", query " << query << ", key " << key;
        ASSERT_EQ(pattern.Sees(query, key, 3), first <= key && key <= query)
            << ToString(pattern) << ", query " << query << ", key " << key;
      }
      most = std::max(most, query - first + 1);
      ASSERT_EQ(pattern.MostKeys(query + 1), most) << ToString(pattern) << ", query " << query;
      ASSERT_EQ(pattern.MostKept(query + 1), most) << ToString(pattern) << ", query " << query;
      if (query > 0) {
        ASSERT_GE(first, pattern.FirstKey(query - 1)) << ToString(pattern);
      }
    }
  }
}

// Checks every function against the definition for queries and heads of a few periods.
TEST(AttentionPatternTest, BlocksAreSeenByHead) {
  for (const AttentionPattern& pattern :
       {AttentionPattern::Blocks(64, 2, 3, 1), AttentionPattern::Blocks(64, 1, 4, 2),
        AttentionPattern::Blocks(128, 2, 2, 1), AttentionPattern::Blocks(64, 3, 5, 0),
        AttentionPattern::Blocks(64, 1, 1, 0)}) {
    EXPECT_TRUE(pattern.has_holes());
    EXPECT_FALSE(pattern.sees_all());
    int64_t most = 0;
    for (int64_t query = 0; query < 900; query += query % 64 == 62 ? 1 : 7) {
      ASSERT_EQ(pattern.FirstKey(query), 0);
      for (int64_t head = 0; head < 6; ++head) {
        int64_t count = 0;
        for (int64_t key = 0; key < 900; ++key) {
          const bool sees = Sees(pattern, query, key, head);
          count += sees ? 1 : 0;
          ASSERT_EQ(pattern.Sees(query, key, head), sees)
              << ToString(pattern) << ", query " << query << ", key " << key << ", head " << head;
        }
        most = std::max(most, count);
      }
      ASSERT_GE(pattern.MostKeys(query + 1), most) << ToString(pattern) << ", query " << query;
      ASSERT_LT(pattern.MostKeys(query + 1), most + 2 * pattern.tokens)
          << ToString(pattern) << ", query " << query;
      ASSERT_EQ(pattern.MostKept(query + 1), query + 1);
    }
  }
}

// Phi-3-small's published rule. A block has 64 keys. A query sees the last 16 and every eighth.
TEST(AttentionPatternTest, TheBlocksOfPhi3Small) {
  constexpr AttentionPattern kPattern = AttentionPattern::Blocks(64, 16, 8, 1);
  constexpr int64_t kQuery = 40 * 64;
  const auto far_blocks = [](const AttentionPattern& pattern, int64_t head) {
    std::vector<int64_t> blocks;
    for (int64_t block = 0; block <= 24; ++block) {
      if (pattern.Sees(kQuery, block * 64, head)) blocks.push_back(block);
    }
    return blocks;
  };
  EXPECT_EQ(far_blocks(kPattern, 0), (std::vector<int64_t>{7, 15, 23}));
  EXPECT_EQ(far_blocks(kPattern, 1), (std::vector<int64_t>{6, 14, 22}));
  EXPECT_EQ(far_blocks(kPattern, 7), (std::vector<int64_t>{0, 8, 16, 24}));
  EXPECT_EQ(far_blocks(kPattern, 31), far_blocks(kPattern, 7));
  EXPECT_EQ(far_blocks(AttentionPattern::Blocks(64, 16, 8, 0), 7), far_blocks(kPattern, 0));
  EXPECT_TRUE(kPattern.Sees(kQuery, 25 * 64, 0));
  EXPECT_FALSE(kPattern.Sees(kQuery, 24 * 64 + 63, 0));
}

// Compares the tiles of random rows with the definition, key by key.
TEST(AttentionPatternTest, SeenTilesFollowFromTheDefinitionOfTheRule) {
  int num_holes = 0, num_whole = 0;
  EXPECT_TRUE(rc::check([&] {
    const auto small = [](int64_t low, int64_t high) { return *rc::gen::inRange(low, high); };
    const auto stride = static_cast<int32_t>(small(1, 10));
    const AttentionPattern pattern = *rc::gen::element(
        AttentionPattern(), AttentionPattern::Window(small(1, 300)),
        AttentionPattern::Chunk(small(1, 300)),
        AttentionPattern::Blocks(64 * small(1, 4), static_cast<int32_t>(small(1, 5)), stride,
                                 static_cast<int32_t>(small(0, stride + 1))));
    const int64_t first = small(0, 1500);
    const AttentionRows rows{.first_query = first,
                             .last_query = first + small(0, 140),
                             .first_head = small(0, 20),
                             .num_heads = small(1, 12)};
    const int64_t tile_keys = *rc::gen::element<int64_t>(16, 32, 64);
    const std::vector<SeenTile> tiles = SeenTiles(pattern, rows, tile_keys);
    size_t next = 0;
    for (int64_t tile = 0; tile * tile_keys < 1800; ++tile) {
      int64_t num_seen = 0;
      for (int64_t query = rows.first_query; query <= rows.last_query; ++query) {
        for (int64_t head = rows.first_head; head < rows.first_head + rows.num_heads; ++head) {
          for (int64_t key = tile * tile_keys; key < (tile + 1) * tile_keys; ++key) {
            num_seen += Sees(pattern, query, key, head) ? 1 : 0;
          }
        }
      }
      if (num_seen == 0) {
        num_holes += tile * tile_keys <= rows.last_query ? 1 : 0;
        continue;
      }
      const bool whole =
          num_seen == (rows.last_query - rows.first_query + 1) * rows.num_heads * tile_keys;
      num_whole += whole ? 1 : 0;
      RC_ASSERT(next < tiles.size());
      RC_ASSERT(tiles[next].tile == tile);
      RC_ASSERT(tiles[next].whole == whole);
      ++next;
    }
    RC_ASSERT(next == tiles.size());
  }));
  EXPECT_GT(num_holes, 100);
  EXPECT_GT(num_whole, 100);
}

// Builds tile lists for random rows. Some rows share a list.
TEST(AttentionPatternTest, SharedListsHoldTheSeenTiles) {
  int num_shared = 0;
  EXPECT_TRUE(rc::check([&] {
    const auto small = [](int64_t low, int64_t high) { return *rc::gen::inRange(low, high); };
    const auto stride = static_cast<int32_t>(small(1, 5));
    const AttentionPattern pattern =
        AttentionPattern::Blocks(64 * small(1, 3), static_cast<int32_t>(small(1, 4)), stride,
                                 static_cast<int32_t>(small(0, stride + 1)));
    const int64_t tile_keys = *rc::gen::element<int64_t>(32, 64);
    TileLists lists;
    for (int i = 0; i < 20; ++i) {
      const int64_t first = small(0, 900);
      const AttentionRows rows{.first_query = first,
                               .last_query = first + small(0, 20),
                               .first_head = small(0, 6) * 2,
                               .num_heads = *rc::gen::element<int64_t>(1, 2)};
      const size_t num_before = lists.tiles().size();
      const TileLists::Range range = lists.Add(pattern, rows, tile_keys);
      num_shared += lists.tiles().size() == num_before ? 1 : 0;
      const std::vector<SeenTile> want = SeenTiles(pattern, rows, tile_keys);
      RC_ASSERT(range.end - range.begin == static_cast<int32_t>(want.size()));
      for (size_t k = 0; k < want.size(); ++k) {
        const SeenTile& got = lists.tiles().at(static_cast<size_t>(range.begin) + k);
        RC_ASSERT(got.tile == want[k].tile);
        RC_ASSERT(got.whole == (want[k].whole && got.tile < rows.first_query / tile_keys));
      }
    }
  }));
  EXPECT_GT(num_shared, 100);
}

TEST(AttentionPatternTest, ErrorsOfBlocksNameTheField) {
  const auto message = [](const AttentionPattern& pattern) {
    const std::vector<int32_t> lens = {1};
    return std::string(Validate(AttentionPlanArgs{.context_lens = lens,
                                                  .query_lens = lens,
                                                  .heads = {1, 1, 8, 8},
                                                  .pattern = pattern})
                           .message());
  };
  EXPECT_EQ(message(AttentionPattern::Blocks(64, 16, 8, 1)), "");
  for (const int64_t tokens : {0, 32, 96, 1 << 17, -64}) {
    EXPECT_THAT(
        message(AttentionPattern::Blocks(tokens, 16, 8, 1)),
        HasSubstr(absl::StrCat("blocks of a multiple of 64 tokens, at most 65536, got ", tokens)));
  }
  for (const int32_t blocks : {0, -1, 1 << 17}) {
    EXPECT_THAT(message(AttentionPattern::Blocks(64, blocks, 8, 1)),
                HasSubstr(absl::StrCat("local_blocks in [1, 65536], got ", blocks)));
  }
  EXPECT_THAT(message(AttentionPattern::Blocks(64, 1, 0, 0)), HasSubstr("got 0 and 0"));
  EXPECT_THAT(message(AttentionPattern::Blocks(64, 1, 1 << 17, 0)), HasSubstr("got 131072 and 0"));
  EXPECT_THAT(message(AttentionPattern::Blocks(64, 1, 8, 9)), HasSubstr("got 8 and 9"));
  EXPECT_THAT(message(AttentionPattern::Blocks(64, 1, 8, -1)), HasSubstr("got 8 and -1"));
}

TEST(AttentionPatternTest, AWindowOrChunkOfNoTokensIsNone) {
  EXPECT_TRUE(AttentionPattern::Window(0).sees_all());
  EXPECT_EQ(AttentionPattern::Window(0), AttentionPattern());
  EXPECT_TRUE(AttentionPattern::Chunk(0).sees_all());
  EXPECT_EQ(AttentionPattern::Chunk(0), AttentionPattern());
}

}  // namespace
}  // namespace quire::kernels
