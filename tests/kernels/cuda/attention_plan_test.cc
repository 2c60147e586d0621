#include "kernels/cuda/attention/attention_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <rapidcheck.h>
#include <span>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/seen_keys.h"

namespace quire::kernels::cuda {
namespace {

struct Lengths {
  std::vector<int32_t> context, query;
  AttentionPlanArgs shape;

  AttentionPlanArgs Args() const {
    AttentionPlanArgs args = shape;
    args.context_lens = context;
    args.query_lens = query;
    return args;
  }
};

Lengths AnyLengths() {
  Lengths lengths;
  const int32_t num_seqs = *rc::gen::inRange(1, 12);
  for (int32_t i = 0; i < num_seqs; ++i) {
    lengths.query.push_back(*rc::gen::oneOf(rc::gen::just(1), rc::gen::inRange(0, 90)));
    lengths.context.push_back(
        lengths.query.back() +
        *rc::gen::oneOf(rc::gen::inRange(0, 200), rc::gen::resize(100, rc::gen::inRange(0, 5000))));
  }
  lengths.shape.heads.num_kv_heads = *rc::gen::inRange(1, 4);
  lengths.shape.heads.num_heads =
      lengths.shape.heads.num_kv_heads * *rc::gen::element(1, 3, 4, 8, 32, 71);
  lengths.shape.heads.key_dim = lengths.shape.heads.value_dim = *rc::gen::element(64, 128, 256);
  const int64_t tokens = *rc::gen::element(0, 0, 1, 100, 2000);
  lengths.shape.pattern = *rc::gen::element(
      AttentionPattern::Window(tokens), AttentionPattern::Chunk(tokens),
      AttentionPattern::Blocks(64 * *rc::gen::inRange(1, 4), *rc::gen::inRange(1, 4),
                               *rc::gen::element(3, 8, 40), *rc::gen::inRange(0, 3)));
  return lengths;
}

// Returns the rows of the smallest row tiles.
int32_t SmallestRows(int32_t head_dim) { return head_dim > 128 ? 32 : 16; }

int64_t Tiles(const AttentionItem& item, int32_t head_dim) {
  const int32_t keys = AttentionTileKeys(head_dim);
  if (item.num_tiles > 0) return item.num_tiles;
  return (item.key_end + keys - 1) / keys - item.key_begin / keys;
}

TEST(CudaAttentionPlanTest, FixedLaunchesOnlyAddEmptyWork) {
  EXPECT_TRUE(rc::check([] {
    Lengths lengths = AnyLengths();
    for (size_t i = 0; i < lengths.query.size(); ++i) {
      lengths.context[i] += 1 - lengths.query[i];
      lengths.query[i] = 1;
    }
    // The device makes the plans of other patterns (plan_decodes_test.cu).
    lengths.shape.pattern = AttentionPattern::Blocks(64 * *rc::gen::inRange(1, 4), 2, 3, 1);
    const AttentionPlanOptions options{.grid_size = *rc::gen::element(1, 3, 40, 264),
                                       .fixed_split = *rc::gen::arbitrary<bool>(),
                                       .fixed_split_keys = 64};
    CudaAttentionPlan plain, fixed;
    AttentionPlanArgs args = lengths.Args();
    RC_ASSERT(plain.Build(args, options).ok());
    args.fixed_launches = true;
    RC_ASSERT(fixed.Build(args, options).ok());

    const int32_t group = args.heads.num_heads / args.heads.num_kv_heads;
    RC_ASSERT(plain.parts().size() == 1u && fixed.parts().size() == 1u);
    const CudaAttentionPlan::Part &from = plain.parts()[0], &to = fixed.parts()[0];
    RC_ASSERT(from.items.size() == to.items.size());
    RC_ASSERT(std::memcmp(from.items.data(), to.items.data(),
                          from.items.size() * sizeof(AttentionItem)) == 0);
    RC_ASSERT(std::ssize(to.block_starts) == options.grid_size + 1);
    RC_ASSERT(std::ranges::equal(from.block_starts,
                                 std::span(to.block_starts).first(from.block_starts.size())));
    RC_ASSERT(std::ranges::all_of(
        std::span(to.block_starts).subspan(from.block_starts.size()),
        [&](int32_t start) { return start == static_cast<int32_t>(from.items.size()); }));

    const int32_t most_rows = options.fixed_split ? SmallestRows(args.heads.value_dim) : 64;
    const int32_t units_of_head = (group + most_rows - 1) / most_rows;
    RC_ASSERT(std::ssize(fixed.merges()) ==
              args.heads.num_kv_heads * units_of_head * std::ssize(lengths.query));
    for (size_t i = 0; i < fixed.merges().size(); ++i) {
      const AttentionMerge& merge = fixed.merges()[i];
      if (i >= plain.merges().size()) {
        RC_ASSERT(merge.num_rows == 0 && merge.num_items == 0);
      } else {
        RC_ASSERT(std::memcmp(&merge, &plain.merges()[i], sizeof(merge)) == 0);
      }
    }
    RC_ASSERT(fixed.most_merge_rows() == std::min(group, most_rows));
    RC_ASSERT(plain.most_merge_rows() <= fixed.most_merge_rows());
    RC_ASSERT(fixed.num_partial_rows() >= plain.num_partial_rows());
  }));
}

TEST(CudaAttentionPlanTest, FixedLaunchesAreOfDecodes) {
  const std::vector<int32_t> context = {5, 7}, query = {1, 2};
  CudaAttentionPlan plan;
  EXPECT_EQ(plan.Build({.context_lens = context,
                        .query_lens = query,
                        .heads = {1, 1, 64, 64},
                        .fixed_launches = true},
                       {})
                .message(),
            "plan: want one query token of each sequence for fixed launches, got 2");
}

// Checks that the items of a unit cover exactly the keys from the first key that the query at
// `first` sees to the key at `last`.
void CheckKeys(const AttentionPattern& pattern, const std::vector<AttentionItem>& items,
               int32_t first, int32_t last) {
  int32_t key = items.front().key_begin;
  RC_ASSERT(key == testing::FirstSeenKey(pattern, first));
  for (const AttentionItem& item : items) {
    RC_ASSERT(item.num_tiles == 0);
    RC_ASSERT(item.key_begin == key && item.key_end > key);
    key = item.key_end;
  }
  RC_ASSERT(key == last + 1);
}

// Checks that the items of a unit list exactly the tiles that its rows see, each once, in ascending
// order. If the rows belong to several queries, all heads of these queries count. Checks that every
// row sees all of a tile that is marked whole.
void CheckListedTiles(const CudaAttentionPlan& plan, const std::vector<AttentionItem>& items,
                      int32_t start) {
  const int32_t group = plan.group(), tile_keys = AttentionTileKeys(plan.value_dim());
  const AttentionItem& unit = items.front();
  const int32_t first = unit.first_row / group, last = (unit.first_row + unit.num_rows - 1) / group;
  std::vector<SeenTile> listed;
  for (const AttentionItem& item : items) {
    RC_ASSERT(item.num_tiles > 0);
    RC_ASSERT(item.key_begin == unit.key_begin && item.key_end == unit.key_end);
    for (int32_t i = item.first_tile; i < item.first_tile + item.num_tiles; ++i) {
      listed.push_back(plan.tiles().at(static_cast<size_t>(i)));
    }
  }
  size_t next = 0;
  for (int32_t tile = 0; tile * tile_keys <= start + last; ++tile) {
    int num_rows = 0, num_whole = 0, num_seeing = 0;
    for (int32_t query = first; query <= last; ++query) {
      for (int32_t head = 0; head < group; ++head) {
        const int32_t row = query * group + head;
        if (first == last && (row < unit.first_row || row >= unit.first_row + unit.num_rows)) {
          continue;
        }
        const auto sees = [&](int32_t key) {
          return testing::Sees(plan.pattern(), start + query, key, unit.kv_head * group + head);
        };
        ++num_rows;
        num_seeing += sees(tile * tile_keys) ? 1 : 0;  // the rule hides whole tiles
        num_whole += sees(tile * tile_keys) && sees((tile + 1) * tile_keys - 1) ? 1 : 0;
      }
    }
    if (num_seeing == 0) continue;
    RC_ASSERT(next < listed.size() && listed[next].tile == tile);
    RC_ASSERT(!listed[next].whole || num_whole == num_rows);
    RC_ASSERT(listed[next].whole || num_whole < num_rows || tile >= (start + first) / tile_keys);
    ++next;
  }
  RC_ASSERT(next == listed.size());
}

TEST(CudaAttentionPlanTest, EveryKeyOfEveryRowIsTakenOnce) {
  EXPECT_TRUE(rc::check([] {
    const Lengths lengths = AnyLengths();
    CudaAttentionPlan plan;
    const bool fixed_split = *rc::gen::arbitrary<bool>(), wide = *rc::gen::arbitrary<bool>();
    RC_ASSERT(plan.Build(lengths.Args(), {.grid_size = *rc::gen::element(1, 2, 3, 7, 40, 264),
                                          .fixed_split = fixed_split,
                                          .fixed_split_keys = *rc::gen::element(64, 256, 1024),
                                          .part_rows = *rc::gen::element(1, 300, 1 << 17),
                                          .wide_items = wide})
                  .ok());
    // Collects the items of each unit, in the order of the plan. Counts the items that write each
    // partial row before it is merged. Each count must be 1. With a fixed split, the parts share
    // the partial rows, and the largest part uses all of them.
    using Unit = std::tuple<int32_t, int32_t, int32_t>;  // seq, kv_head, first_row
    std::map<Unit, std::vector<AttentionItem>> units;
    std::vector<int> writers(static_cast<size_t>(plan.num_partial_rows()));
    int64_t num_written = 0, num_merged = 0;
    for (const CudaAttentionPlan::Part& part : plan.parts()) {
      if (fixed_split) std::ranges::fill(writers, 0);
      RC_ASSERT(part.block_starts.front() == 0);
      RC_ASSERT(part.block_starts.back() == static_cast<int32_t>(part.items.size()));
      for (size_t b = 1; b < part.block_starts.size(); ++b) {
        RC_ASSERT(part.block_starts[b - 1] < part.block_starts[b]);
      }
      for (const AttentionItem& item : part.items) {
        units[{item.seq, item.kv_head, item.first_row}].push_back(item);
        for (int32_t row = 0; item.partial >= 0 && row < item.num_rows; ++row) {
          ++writers.at(static_cast<size_t>(item.partial + row));
        }
      }
      const auto written = std::ranges::count(writers, 1);
      RC_ASSERT(written + std::ranges::count(writers, 0) == std::ssize(writers));
      RC_ASSERT(std::ranges::find(writers, 0) == writers.begin() + written);
      num_written = std::max(num_written, written);
      num_merged += part.num_merges;
    }
    RC_ASSERT(num_written == plan.num_partial_rows());
    RC_ASSERT(num_merged == std::ssize(plan.merges()));
    const int32_t group = lengths.shape.heads.num_heads / lengths.shape.heads.num_kv_heads;
    // The rows of a unit do not depend on the other requests. A unit has as many as an item may
    // have, and the last one of a request has the rest. Wide items are for more than one query.
    // With a fixed split, all have the rows of the smallest row tiles.
    for (const CudaAttentionPlan::Part& part : plan.parts()) {
      RC_ASSERT(!part.prefill);
      for (const AttentionItem& item : part.items) {
        const int32_t queries = lengths.query[static_cast<size_t>(item.seq)];
        const int32_t rows = queries * group;
        const int32_t most_rows = fixed_split ? SmallestRows(lengths.shape.heads.value_dim)
                                  : wide && queries > 1 ? 128
                                                        : 64;
        RC_ASSERT(item.first_row % most_rows == 0);
        RC_ASSERT(item.num_rows == std::min(most_rows, rows - item.first_row));
      }
    }
    // One launch for all of them, unless a fixed split computes its rows in parts.
    RC_ASSERT(fixed_split || plan.parts().size() <= 1u);
    size_t seen = 0, split = 0;
    for (size_t seq = 0; seq < lengths.query.size(); ++seq) {
      const int32_t start = lengths.context[seq] - lengths.query[seq];
      for (int32_t kv_head = 0; kv_head < lengths.shape.heads.num_kv_heads; ++kv_head) {
        for (int32_t row = 0; row < lengths.query[seq] * group; ++seen) {
          const auto found = units.find({static_cast<int32_t>(seq), kv_head, row});
          RC_ASSERT(found != units.end());
          const std::vector<AttentionItem>& items = found->second;
          const int32_t last_row = row + items.front().num_rows - 1;
          if (lengths.shape.pattern.has_holes()) {
            CheckListedTiles(plan, items, start);
          } else {
            CheckKeys(lengths.shape.pattern, items, start + row / group, start + last_row / group);
          }
          for (const AttentionItem& item : items) RC_ASSERT(item.first_position == start);
          const bool merged = fixed_split || items.size() > 1;
          for (const AttentionItem& item : items) RC_ASSERT(merged == (item.partial >= 0));
          split += merged;
          row = last_row + 1;
        }
      }
    }
    RC_ASSERT(seen == units.size());
    RC_ASSERT(split == plan.merges().size());
    for (const AttentionMerge& merge : plan.merges()) {
      const auto& items = units.at({merge.seq, merge.kv_head, merge.first_row});
      RC_ASSERT(static_cast<size_t>(merge.num_items) == items.size());
      for (size_t i = 0; i < items.size(); ++i) {
        RC_ASSERT(items[i].partial == merge.partial + static_cast<int32_t>(i) * merge.num_rows);
      }
    }
  }));
}

TEST(CudaAttentionPlanTest, NoPlanIsLargerThanTheLargest) {
  EXPECT_TRUE(rc::check([] {
    Lengths lengths = AnyLengths();
    if (lengths.shape.pattern.has_holes()) lengths.shape.pattern = {};
    const bool fixed_split = *rc::gen::arbitrary<bool>();
    const AttentionPlanOptions options{
        .grid_size = *rc::gen::element(1, 2, 3, 7, 40, 264),
        .fixed_split = fixed_split,
        .fixed_split_keys = *rc::gen::element(64, 256),
        .part_rows = *rc::gen::element(1, 300, 3000, 1 << 17),
        .wide_items = *rc::gen::arbitrary<bool>(),
        .prefill_grid_size = fixed_split ? 0 : *rc::gen::element(0, 5, 132),
        .skips_far_keys = !fixed_split && *rc::gen::arbitrary<bool>()};
    AttentionPlanArgs args = lengths.Args();
    args.most_context_len = std::ranges::max(lengths.context) + 1;  // that of the decodes below
    args.most_seqs = std::ssize(lengths.query);
    args.most_tokens = std::max<int64_t>(
        args.most_seqs, std::accumulate(lengths.query.begin(), lengths.query.end(), int64_t{0}));
    const PlanSizes largest = LargestPlan(args, options);
    CudaAttentionPlan plan;
    RC_ASSERT(plan.Build(args, options).ok());
    PlanSizes sizes;
    for (const CudaAttentionPlan::Part& part : plan.parts()) {
      sizes.items += std::ssize(part.items);
      sizes.block_starts += std::ssize(part.block_starts);
    }
    RC_ASSERT(std::ssize(plan.parts()) <= largest.parts);
    RC_ASSERT(sizes.items <= largest.items && std::ssize(plan.merges()) <= largest.merges);
    RC_ASSERT(sizes.block_starts <= largest.block_starts);
    RC_ASSERT(plan.num_partial_rows() <= largest.partial_rows);

    for (size_t i = 0; i < lengths.query.size(); ++i) {
      lengths.context[i] += 1 - lengths.query[i];
      lengths.query[i] = 1;
    }
    AttentionPlanArgs decodes = lengths.Args();
    decodes.fixed_launches = true;
    decodes.most_context_len = args.most_context_len;
    RC_ASSERT(plan.Build(decodes, options).ok());
    RC_ASSERT(plan.decodes()->most_items <= largest.items);
    RC_ASSERT(args.most_seqs * plan.decodes()->units.per_seq() <= largest.merges);
    RC_ASSERT(plan.num_partial_rows() <= largest.partial_rows);
  }));
}

// The largest plans of a fixed split, worked out by hand. A unit has up to 16 rows.
TEST(CudaAttentionPlanTest, TheLargestFixedSplitIsNoLargerThanItNeedsToBe) {
  const auto largest = [](const AttentionPlanArgs& args, int64_t part_rows) {
    return LargestPlan(
        args,
        {.grid_size = 9, .fixed_split = true, .fixed_split_keys = 64, .part_rows = part_rows});
  };
  // Two decodes of 4 rows, in 11 pieces each.
  AttentionPlanArgs args = {
      .heads = {4, 1, 64, 64}, .most_tokens = 2, .most_seqs = 2, .most_context_len = 700};
  const PlanSizes decodes = largest(args, 20);
  EXPECT_EQ(decodes.items, 3 * 11);
  EXPECT_EQ(decodes.merges, 3);
  EXPECT_EQ(decodes.parts, 3);
  EXPECT_EQ(decodes.block_starts, 3 * 10);
  EXPECT_EQ(decodes.partial_rows, 2 * 4 * 11);
  // A prompt, whose parts share the partial rows of one unit.
  args.most_tokens = 1000;
  args.most_seqs = 1;
  EXPECT_EQ(largest(args, 20).parts, 251);
  EXPECT_EQ(largest(args, 20).partial_rows, 16 * 11);
  EXPECT_EQ(largest(args, 44000).parts, 3);
  // Padding makes three decodes four. Each has five units of up to 16 of 71 rows, and a window of
  // 100 keys in three pieces.
  args = {.heads = {71, 1, 64, 64},
          .pattern = AttentionPattern::Window(100),
          .most_tokens = 3,
          .most_seqs = 4,
          .most_context_len = 700};
  EXPECT_EQ(largest(args, 1000).items, 4 * 5 * 3);
  EXPECT_EQ(largest(args, 1000).partial_rows, 4 * 5 * 3 * 16);
}

// Three blocks share one unit of 128 rows.
TEST(CudaAttentionPlanTest, TheLargestPlanHasRoomForThePiecesOfAWideItem) {
  const std::vector<int32_t> context = {2000}, query = {128};
  const AttentionPlanArgs args{.context_lens = context,
                               .query_lens = query,
                               .heads = {1, 1, 64, 64},
                               .most_tokens = 128,
                               .most_seqs = 1};
  const AttentionPlanOptions options{.grid_size = 3, .wide_items = true};
  CudaAttentionPlan plan;
  ASSERT_TRUE(plan.Build(args, options).ok());
  EXPECT_EQ(plan.num_partial_rows(), 3 * 128);
  EXPECT_LE(plan.num_partial_rows(), LargestPlan(args, options).partial_rows);
}

TEST(CudaAttentionPlanTest, NoRangeHasMoreThanItsEqualShare) {
  EXPECT_TRUE(rc::check([] {
    const Lengths lengths = AnyLengths();
    const int32_t grid_size = *rc::gen::element(1, 2, 3, 7, 40, 264);
    const bool draws = *rc::gen::arbitrary<bool>();
    CudaAttentionPlan plan;
    RC_ASSERT(plan.Build(lengths.Args(), {.grid_size = grid_size,
                                          .wide_items = *rc::gen::arbitrary<bool>(),
                                          .skips_far_keys = draws})
                  .ok());
    for (const CudaAttentionPlan::Part& part : plan.parts()) {
      int32_t most_rows = 1;
      for (const AttentionItem& item : part.items) most_rows = std::max(most_rows, item.num_rows);
      const int32_t head_dim = lengths.shape.heads.value_dim;
      const int64_t ranges = draws ? grid_size * 8 / ItemRowTiles(most_rows, head_dim) : grid_size;
      int64_t total = 0, most = 0;
      for (size_t b = 1; b < part.block_starts.size(); ++b) {
        int64_t tiles = 0;
        for (int32_t i = part.block_starts[b - 1]; i < part.block_starts[b]; ++i) {
          tiles += Tiles(part.items[static_cast<size_t>(i)], lengths.shape.heads.value_dim);
        }
        total += tiles;
        most = std::max(most, tiles);
      }
      RC_ASSERT(std::ssize(part.block_starts) - 1 <= ranges);
      RC_ASSERT(most <= std::max<int64_t>((total + ranges - 1) / ranges, kMinRangeTiles));
    }
  }));
}

TEST(CudaAttentionPlanTest, ABlockTakesPiecesOfAFixedSplitUntilSharesAreFull) {
  EXPECT_TRUE(rc::check([] {
    const Lengths lengths = AnyLengths();
    const int32_t grid_size = *rc::gen::element(1, 2, 3, 7, 40, 264);
    CudaAttentionPlan plan;
    RC_ASSERT(plan.Build(lengths.Args(), {.grid_size = grid_size,
                                          .fixed_split = true,
                                          .fixed_split_keys = *rc::gen::element(64, 256)})
                  .ok());
    for (const CudaAttentionPlan::Part& part : plan.parts()) {
      int64_t total = 0;
      for (const AttentionItem& item : part.items)
        total += Tiles(item, lengths.shape.heads.value_dim);
      const int64_t share = (total + grid_size - 1) / grid_size;
      int64_t done = 0;
      for (size_t b = 1; b < part.block_starts.size(); ++b) {
        for (int32_t i = part.block_starts[b - 1]; i < part.block_starts[b]; ++i) {
          RC_ASSERT(i == part.block_starts[b - 1] || done < static_cast<int64_t>(b) * share);
          done += Tiles(part.items[static_cast<size_t>(i)], lengths.shape.heads.value_dim);
        }
      }
    }
  }));
}

TEST(CudaAttentionPlanTest, AFixedSplitDependsOnNothingButTheRequest) {
  EXPECT_TRUE(rc::check([] {
    const Lengths batch = AnyLengths();
    const auto seq = *rc::gen::inRange<size_t>(0, batch.query.size());
    Lengths alone = batch;
    alone.query = {batch.query[seq]};
    alone.context = {batch.context[seq]};
    const int32_t keys = *rc::gen::element(64, 128, 1024);
    const auto cuts = [keys](const Lengths& lengths, int32_t of, int32_t grid_size) {
      CudaAttentionPlan plan;
      RC_ASSERT(plan.Build(lengths.Args(),
                           {.grid_size = grid_size, .fixed_split = true, .fixed_split_keys = keys})
                    .ok());
      std::vector<std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, bool, int32_t, int32_t>>
          result;
      for (const CudaAttentionPlan::Part& part : plan.parts()) {
        RC_ASSERT(part.block_starts.size() - 1 <= static_cast<size_t>(grid_size));
        for (const AttentionItem& item : part.items) {
          if (item.seq != of) continue;
          result.emplace_back(
              item.num_rows, item.kv_head, item.first_row, item.key_begin, item.key_end,
              item.partial >= 0, item.num_tiles,
              item.num_tiles == 0 ? 0 : plan.tiles().at(static_cast<size_t>(item.first_tile)).tile);
        }
      }
      return result;
    };
    RC_ASSERT(cuts(batch, static_cast<int32_t>(seq), *rc::gen::element(1, 2, 3, 7, 40, 264)) ==
              cuts(alone, 0, *rc::gen::element(1, 2, 3, 7, 40, 264)));
  }));
}

TEST(CudaAttentionPlanTest, AFixedSplitCutsAtMultiplesAndNowhereElse) {
  EXPECT_TRUE(rc::check([] {
    const Lengths lengths = AnyLengths();
    const int32_t keys = *rc::gen::element(64, 128, 1024);
    CudaAttentionPlan plan;
    RC_ASSERT(plan.Build(lengths.Args(),
                         {.grid_size = 264, .fixed_split = true, .fixed_split_keys = keys})
                  .ok());
    const int32_t tile_keys = AttentionTileKeys(lengths.shape.heads.value_dim);
    // The first and the last position in the tiles of an item.
    const auto range_of = [&](const AttentionItem& item) {
      if (item.num_tiles == 0) return std::pair(item.key_begin, item.key_end - 1);
      const auto tile = [&](int32_t i) { return plan.tiles().at(static_cast<size_t>(i)).tile; };
      return std::pair(tile(item.first_tile) * tile_keys,
                       tile(item.first_tile + item.num_tiles - 1) * tile_keys);
    };
    for (const CudaAttentionPlan::Part& part : plan.parts()) {
      for (size_t i = 0; i < part.items.size(); ++i) {
        const auto [first, last] = range_of(part.items[i]);
        RC_ASSERT(first / keys == last / keys);
        if (i == 0 || part.items[i].first_row != part.items[i - 1].first_row ||
            part.items[i].kv_head != part.items[i - 1].kv_head ||
            part.items[i].seq != part.items[i - 1].seq) {
          continue;
        }
        RC_ASSERT(range_of(part.items[i - 1]).second / keys < first / keys);
      }
    }
  }));
}

TEST(CudaAttentionPlanTest, PartsOfAFixedSplitShareAFewPartialRows) {
  const auto plan_of = [](int32_t context_len, int32_t query_len) {
    const std::vector<int32_t> context = {context_len}, query = {query_len};
    CudaAttentionPlan plan;
    EXPECT_TRUE(
        plan.Build({.context_lens = context, .query_lens = query, .heads = {32, 8, 128, 128}},
                   {.grid_size = 264, .fixed_split = true})
            .ok());
    return plan;
  };
  const CudaAttentionPlan decode = plan_of(131072, 1);
  EXPECT_EQ(decode.parts().size(), 1u);
  EXPECT_EQ(decode.merges().size(), 8u);
  EXPECT_EQ(decode.num_partial_rows(), 32 * 128);
  const CudaAttentionPlan chunk = plan_of(8192, 8192);
  EXPECT_EQ(chunk.merges().size(), 8u * 8192 * 4 / 16);
  // The first 1024 of the 8192 queries have one piece each, the next 1024 two, and so on up to
  // eight. These are the partial rows of nine parts, but a part takes whole units.
  EXPECT_EQ(32 * 1024 * (8 * 9 / 2) / (1 << 17), 9);
  EXPECT_EQ(chunk.parts().size(), 10u);
  EXPECT_EQ(chunk.num_partial_rows(), 1 << 17);
  // A unit of more partial rows has a part of its own.
  const std::vector<int32_t> context = {700, 700}, query = {1, 1};
  CudaAttentionPlan plan;
  EXPECT_TRUE(plan.Build({.context_lens = context, .query_lens = query, .heads = {4, 1, 64, 64}},
                         {.fixed_split = true, .fixed_split_keys = 64, .part_rows = 43})
                  .ok());
  EXPECT_EQ(plan.parts().size(), 2u);
  EXPECT_EQ(plan.num_partial_rows(), 4 * 11);
}

TEST(CudaAttentionPlanTest, AFixedSplitHasOneKernel) {
  const std::vector<int32_t> lens = {4};
  CudaAttentionPlan plan;
  EXPECT_EQ(plan.Build({.context_lens = lens, .query_lens = lens, .heads = {4, 2, 64, 64}},
                       {.fixed_split = true, .prefill_grid_size = 3})
                .message(),
            "plan: want one kernel for all rows of a fixed split, got a second one for chunks");
  EXPECT_EQ(plan.Build({.context_lens = lens, .query_lens = lens, .heads = {4, 2, 64, 64}},
                       {.fixed_split = true, .skips_far_keys = true})
                .message(),
            "plan: want no skipped keys with a fixed split, got both");
}

TEST(CudaAttentionPlanTest, TooManyPartialRowsAreRefusedByNumber) {
  const std::vector<int32_t> context = {300, 300, 300}, query = {1, 1, 1};
  const AttentionPlanArgs args{
      .context_lens = context, .query_lens = query, .heads = {4, 2, 64, 64}};
  AttentionPlanOptions options{
      .fixed_split = true, .fixed_split_keys = 128, .max_partial_rows = 36};
  CudaAttentionPlan plan;
  EXPECT_TRUE(plan.Build(args, options).ok());  // 3 sequences of 4 rows, each in 3 pieces
  EXPECT_EQ(plan.num_partial_rows(), 36);
  options.max_partial_rows = 35;
  const absl::Status status = plan.Build(args, options);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "plan: want at most 35 partial rows, got 36 by sequence 2 of 3");
}

TEST(CudaAttentionPlanTest, TheSizesOfDecodesHaveTheSameLimit) {
  const std::vector<int32_t> context = {300, 300, 300}, query = {1, 1, 1};
  const AttentionPlanArgs args{.context_lens = context,
                               .query_lens = query,
                               .heads = {4, 2, 64, 64},
                               .fixed_launches = true,
                               .most_context_len = 300};
  AttentionPlanOptions options{
      .fixed_split = true, .fixed_split_keys = 128, .max_partial_rows = 36};
  CudaAttentionPlan plan;
  EXPECT_TRUE(plan.Build(args, options).ok());
  EXPECT_EQ(plan.num_partial_rows(), 36);
  options.max_partial_rows = 35;
  EXPECT_EQ(plan.Build(args, options).message(),
            "plan: want at most 35 partial rows, got 36 of 3 decodes");
}

TEST(CudaAttentionPlanTest, DecodesHaveRoomForSequencesWhoseLongestIsUnknown) {
  const std::vector<int32_t> context = {700}, query = {1};
  CudaAttentionPlan plan;
  ASSERT_TRUE(plan.Build({.context_lens = context,
                          .query_lens = query,
                          .heads = {4, 1, 64, 64},
                          .fixed_launches = true},
                         {.fixed_split = true, .fixed_split_keys = 128})
                  .ok());
  EXPECT_EQ(plan.decodes()->most_items, 8);  // the next power of two after 6 pieces
  EXPECT_EQ(plan.num_partial_rows(), 4 * 8);
}

TEST(CudaAttentionPlanTest, RangesAreAtLeastTheShortestAndNoLongerThanASequence) {
  const auto plan_of = [](const std::vector<int32_t>& context) {
    const std::vector<int32_t> query(context.size(), 1);
    CudaAttentionPlan plan;
    EXPECT_TRUE(plan.Build({.context_lens = context, .query_lens = query, .heads = {1, 1, 64, 64}},
                           {.grid_size = 264})
                    .ok());
    return plan;
  };
  const CudaAttentionPlan cut = plan_of({5 * 64, 10});
  ASSERT_EQ(cut.merges().size(), 1u);
  EXPECT_EQ(cut.merges()[0].num_items, 2);  // kMinRangeTiles tiles, and the remaining tile
  // There is one thread block for each sequence.
  EXPECT_EQ(plan_of({10, 10, 10}).parts()[0].block_starts.size(), 4u);
}

TEST(CudaAttentionPlanTest, ErrorsSayWhatWantedGot) {
  const std::vector<int32_t> lens = {4}, longer = {5}, two = {1, 1};
  AttentionPlanArgs args{.context_lens = lens, .query_lens = lens, .heads = {4, 2, 64, 64}};
  CudaAttentionPlan plan;
  EXPECT_TRUE(plan.Build(args, {}).ok());
  EXPECT_EQ(plan.Build(args, {.grid_size = 0}).code(), absl::StatusCode::kInvalidArgument);
  for (const int32_t keys : {0, -64, 96}) {
    EXPECT_EQ(plan.Build(args, {.fixed_split_keys = keys}).message(),
              absl::StrCat("plan: want fixed_split_keys a positive multiple of 64, got ", keys));
  }
  const auto message = [&](AttentionPlanArgs bad) {
    const absl::Status status = plan.Build(bad, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  AttentionPlanArgs bad = args;
  bad.heads.num_kv_heads = 3;
  EXPECT_EQ(message(bad), "plan: want num_heads a positive multiple of num_kv_heads, got 4 and 3");
  bad.heads.num_kv_heads = 0;
  EXPECT_EQ(message(bad), "plan: want num_heads a positive multiple of num_kv_heads, got 4 and 0");
  bad = args;
  bad.heads.num_heads = 0;
  EXPECT_EQ(message(bad), "plan: want num_heads a positive multiple of num_kv_heads, got 0 and 2");
  bad = args;
  bad.heads.key_dim = 0;
  EXPECT_EQ(message(bad), "plan: want key_dim > 0, got 0");
  bad = args;
  bad.heads.value_dim = 0;
  EXPECT_EQ(message(bad), "plan: want value_dim > 0, got 0");
  bad = args;
  bad.pattern = AttentionPattern::Window(-1);
  EXPECT_EQ(message(bad), "pattern: want tokens > 0, got -1");
  bad = args;
  bad.query_lens = longer;
  EXPECT_EQ(message(bad), "plan: want a query_len in [0, 4], got 5");
  bad.query_lens = two;
  EXPECT_EQ(message(bad), "plan: want 1 query_lens, got 2");
}

// Returns the most rows of an item, and the blocks, of each part of a plan for these sequences.
std::vector<std::pair<int32_t, size_t>> PartsOf(const std::vector<int32_t>& query_lens,
                                                int32_t group, int32_t prefill_grid_size) {
  const std::vector<int32_t> context_lens(query_lens.size(), 5000);
  CudaAttentionPlan plan;
  EXPECT_TRUE(plan.Build({.context_lens = context_lens,
                          .query_lens = query_lens,
                          .heads = {2 * group, 2, 128, 128}},
                         {.grid_size = 5, .prefill_grid_size = prefill_grid_size})
                  .ok());
  std::vector<std::pair<int32_t, size_t>> parts;
  for (const auto& part : plan.parts()) {
    int32_t rows = 0;
    for (const AttentionItem& item : part.items) rows = std::max(rows, item.num_rows);
    EXPECT_EQ(part.prefill, rows > kMostItemRows);
    parts.emplace_back(rows, part.block_starts.size() - 1);
  }
  return parts;
}

TEST(CudaAttentionPlanTest, ChunksOfMoreThan64RowsHaveAPartOfTheirOwnWhereThatIsChosen) {
  using Parts = std::vector<std::pair<int32_t, size_t>>;
  EXPECT_EQ(PartsOf({1, 16, 17}, 4, 0), (Parts{{64, 5}}));
  EXPECT_EQ(PartsOf({1, 16, 17}, 4, 3), (Parts{{64, 5}, {68, 3}}));
  EXPECT_EQ(PartsOf({65}, 1, 3), (Parts{{65, 3}}));
  EXPECT_EQ(PartsOf({64}, 1, 3), (Parts{{64, 5}}));
  EXPECT_EQ(PartsOf({1}, 71, 3), (Parts{{64, 5}}));  // a decode
  EXPECT_EQ(PartsOf({2}, 71, 3), (Parts{{128, 3}}));
}

TEST(CudaAttentionPlanTest, KeysAndRowsFitInInt32) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max() - 128;
  std::vector<int32_t> context = {kMost}, query = {1};
  const AttentionPlanArgs args{
      .context_lens = context, .query_lens = query, .heads = {2, 1, 64, 64}};
  CudaAttentionPlan plan;
  ASSERT_TRUE(plan.Build(args, {}).ok());
  EXPECT_EQ(plan.parts()[0].items[0].key_end, kMost);
  context[0] = kMost + 1;
  EXPECT_EQ(plan.Build(args, {}).message(),
            "plan: want fewer than 2^31 - 128 keys and rows, got 2147483520 and 2");
  context[0] = query[0] = 1 << 30;
  EXPECT_EQ(plan.Build(args, {}).message(),
            "plan: want fewer than 2^31 - 128 keys and rows, got 1073741824 and 2147483648");
}

TEST(CudaAttentionPlanTest, TheBlockTableHoldsTheKeysOfSequencesThatAsk) {
  const std::vector<int32_t> context = {32, 100}, query = {1, 0};
  CudaAttentionPlan plan;
  ASSERT_TRUE(
      plan.Build({.context_lens = context, .query_lens = query, .heads = {4, 2, 64, 64}}, {}).ok());
  std::byte memory[1] = {};  // nothing is read
  PagedAttentionArgs args;
  args.query = args.out = TensorView(memory, DType::kBF16, {1, 4, 64});
  args.kv_cache = TensorView(memory, DType::kBF16, {8, 2, 2, 16, 64});
  args.block_table = TensorView(memory, DType::kI32, {2, 2});
  EXPECT_TRUE(plan.CheckMatches(args).ok());
  args.block_table = TensorView(memory, DType::kI32, {2, 1});
  EXPECT_EQ(plan.CheckMatches(args).message(),
            "block_table: want blocks for 32 tokens of sequence 0, got 16");
}

}  // namespace
}  // namespace quire::kernels::cuda
