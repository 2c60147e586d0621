#include "engine/batch/shared_prefixes.h"

#include <algorithm>
#include <map>
#include <rapidcheck.h>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::IsEmpty;

using Tables = std::vector<std::vector<int32_t>>;

std::vector<PrefixRow> RowsOf(const Tables& tables) {
  std::vector<PrefixRow> rows;
  for (size_t i = 0; i < tables.size(); ++i) {
    rows.push_back({.seq = static_cast<int32_t>(i), .blocks = tables[i]});
  }
  return rows;
}

// Pairs of the sequences, ascending, and the keys that they share.
using Found = std::vector<std::pair<std::vector<int32_t>, int32_t>>;

Found FindIn(const Tables& tables, int64_t least_saved_keys, int32_t block_size) {
  std::vector<PrefixRow> rows = RowsOf(tables);
  SharedPrefixes prefixes(block_size);
  prefixes.Find(rows, least_saved_keys);
  Found found;
  int64_t saved = 0;
  for (const kernels::SharedKeys& keys : prefixes.keys()) {
    const auto seqs = prefixes.seqs().subspan(keys.first, keys.count);
    found.push_back({{seqs.begin(), seqs.end()}, keys.num_keys});
    std::ranges::sort(found.back().first);
    saved += (keys.count - 1) * int64_t{keys.num_keys};
  }
  std::ranges::sort(found);
  EXPECT_EQ(saved, prefixes.num_saved());
  return found;
}

// Returns `count` blocks from `first` on.
std::vector<int32_t> Blocks(int32_t first, int32_t count) {
  std::vector<int32_t> blocks;
  for (int32_t i = 0; i < count; ++i) blocks.push_back(first + i);
  return blocks;
}

std::vector<int32_t> Join(std::vector<int32_t> head, const std::vector<int32_t>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

TEST(SharedPrefixesTest, ForksShareTheWholeTilesOfTheirFirstBlocks) {
  const std::vector<int32_t> prompt = Blocks(100, 18);
  EXPECT_EQ(FindIn({Join(prompt, {1}), prompt, Blocks(500, 30), Join(prompt, {2, 3})}, 1, 16),
            (Found{{{0, 1, 3}, 256}}));
  EXPECT_EQ(FindIn({Join(prompt, {1}), Join(prompt, {2})}, 1, 32), (Found{{{0, 1}, 576}}));
}

TEST(SharedPrefixesTest, ShortPrefixesAndSmallSavingsAreLeftAlone) {
  const std::vector<int32_t> prompt = Blocks(100, 16);
  EXPECT_THAT(FindIn({Blocks(100, 15), prompt}, 1, 16), IsEmpty());
  const Tables three = {Join(prompt, {1}), Join(prompt, {2}), Join(prompt, {3})};
  EXPECT_EQ(FindIn(three, 512, 16), (Found{{{0, 1, 2}, 256}}));
  EXPECT_THAT(FindIn(three, 513, 16), IsEmpty());
  EXPECT_THAT(FindIn({}, 1, 16), IsEmpty());
  EXPECT_THAT(FindIn({prompt}, 1, 16), IsEmpty());
}

// Two conversations of four forks each follow one system prompt.
TEST(SharedPrefixesTest, OfNestedPrefixesThoseThatSaveMostAreChosen) {
  for (const int32_t conversation : {4, 40}) {
    Tables tables;
    for (int32_t i = 0; i < 8; ++i) {
      tables.push_back(
          Join(Join(Blocks(100, 20), Blocks(i % 2 == 0 ? 200 : 300, conversation)), {i}));
    }
    if (conversation == 4) {  // 7 * 320 of the system prompt, 6 * 384 of both conversations
      EXPECT_EQ(FindIn(tables, 1, 16), (Found{{{0, 2, 4, 6}, 384}, {{1, 3, 5, 7}, 384}}));
      tables.push_back(Join(Blocks(100, 20), {400}));  // 8 * 320
      EXPECT_EQ(FindIn(tables, 1, 16), (Found{{{0, 1, 2, 3, 4, 5, 6, 7, 8}, 320}}));
    } else {
      EXPECT_EQ(FindIn(tables, 1, 16), (Found{{{0, 2, 4, 6}, 960}, {{1, 3, 5, 7}, 960}}));
    }
  }
}

// Two forks of a long conversation keep it to themselves. Two forks of a short one, and sequences
// without forks, share the system prompt.
TEST(SharedPrefixesTest, ForksOfALongConversationLeaveTheSystemPromptToTheOthers) {
  const std::vector<int32_t> system = Blocks(100, 20);
  const std::vector<int32_t> brief = Join(system, Blocks(200, 4));
  const std::vector<int32_t> lengthy = Join(system, Blocks(300, 80));
  EXPECT_EQ(FindIn({Join(brief, {1}), Join(lengthy, {2}), system, Join(lengthy, {3}),
                    Join(system, Blocks(400, 80)), Join(brief, {4})},
                   1, 16),
            (Found{{{0, 2, 4, 5}, 320}, {{1, 3}, 1600}}));
}

// Each row goes on from the row before by one block. The two last rows share 4000 blocks more.
TEST(SharedPrefixesTest, PrefixesBeyondTheMostLevelsAreNotFound) {
  for (const int32_t beyond : {-1, 1}) {
    const int32_t num_rows = SharedPrefixes::kMostLevels + beyond - 1;
    Tables tables;
    for (int32_t i = 0; i < num_rows; ++i) tables.push_back(Blocks(100, 20 + i));
    const std::vector<int32_t> deep = Join(tables.back(), Blocks(1000, 4000));
    tables.push_back(Join(deep, {1}));
    tables.push_back(Join(deep, {2}));
    const Found found = FindIn(tables, 1, 16);
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.back().second > 4000 * 16, beyond < 0);
  }
}

// Returns the most keys that `rows` can save, if the rows of a branch share either prefixes of
// their own or that of all. Tries every choice.
int64_t MostSaved(const Tables& rows, int32_t block_size) {
  if (rows.size() < 2) return 0;
  size_t common = rows[0].size();
  for (const std::vector<int32_t>& row : rows) {
    const auto end = std::ranges::mismatch(rows[0], row).in1;
    common = std::min(common, static_cast<size_t>(end - rows[0].begin()));
  }
  std::map<int32_t, Tables> branches;
  for (const std::vector<int32_t>& row : rows) {
    if (row.size() > common) branches[row[common]].push_back(row);
  }
  const int64_t keys = static_cast<int64_t>(common) * block_size / 64 * 64;
  int64_t most = 0;
  for (uint32_t own = 0; own < 1u << branches.size(); ++own) {
    int64_t saved = 0, sharing = std::ssize(rows);
    uint32_t bit = 1;
    for (const auto& [next, branch] : branches) {
      if ((own & bit) != 0) {
        saved += MostSaved(branch, block_size);
        sharing -= std::ssize(branch);
      }
      bit <<= 1;
    }
    if (sharing >= 2 && keys >= SharedPrefixes::kLeastKeys) saved += (sharing - 1) * keys;
    most = std::max(most, saved);
  }
  return most;
}

TEST(SharedPrefixesTest, NoChoiceSavesMore) {
  EXPECT_TRUE(rc::check([] {
    const int32_t block_size = *rc::gen::element(64, 128);
    Tables tables;
    int32_t fresh = 1000;
    for (int32_t i = *rc::gen::inRange(0, 10); i > 0; --i) {
      // Goes on from a part of an earlier row, as a fork does.
      std::vector<int32_t> row;
      if (!tables.empty()) {
        row = *rc::gen::elementOf(tables);
        row.resize(static_cast<size_t>(*rc::gen::inRange(0, static_cast<int>(row.size()) + 1)));
      }
      for (int32_t n = *rc::gen::inRange(0, 8); n > 0; --n) row.push_back(fresh++);
      tables.push_back(row);
    }
    int64_t saved = 0;
    std::vector<int32_t> all;
    for (const auto& [seqs, num_keys] : FindIn(tables, 1, block_size)) {
      all.insert(all.end(), seqs.begin(), seqs.end());
      saved += (std::ssize(seqs) - 1) * num_keys;
      for (const int32_t seq : seqs) {
        const std::vector<int32_t>& first = tables[static_cast<size_t>(seqs[0])];
        const std::vector<int32_t>& row = tables[static_cast<size_t>(seq)];
        RC_ASSERT(num_keys <= std::ssize(row) * block_size);
        RC_ASSERT(std::equal(row.begin(), row.begin() + num_keys / block_size, first.begin()));
      }
    }
    std::ranges::sort(all);
    RC_ASSERT(std::ranges::adjacent_find(all) == all.end());
    RC_ASSERT(saved == MostSaved(tables, block_size));
  }));
}

}  // namespace
}  // namespace quire::engine
