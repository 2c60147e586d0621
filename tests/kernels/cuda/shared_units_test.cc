// Tests plans of steps in which sequences share their first keys.

#include <algorithm>
#include <map>
#include <numeric>
#include <rapidcheck.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/attention/attention_plan.h"
#include "tests/testing/seen_keys.h"

namespace quire::kernels::cuda {
namespace {

struct Step {
  std::vector<int32_t> context, query, shared_seqs;
  std::vector<SharedKeys> shared_keys;
  AttentionPlanArgs shape;

  AttentionPlanArgs Args() const {
    AttentionPlanArgs args = shape;
    args.context_lens = context;
    args.query_lens = query;
    args.shared_seqs = shared_seqs;
    args.shared_keys = shared_keys;
    return args;
  }
};

// Returns a step with up to three prefixes. If not `decodes`, a sequence may have several queries
// or none.
Step AnyStep(bool decodes) {
  Step step;
  const int32_t num_seqs = *rc::gen::inRange(2, 40);
  std::vector<int32_t> order;
  for (int32_t i = 0; i < num_seqs; ++i) {
    step.query.push_back(decodes ? 1 : *rc::gen::element(1, 1, 1, 1, 0, 5));
    step.context.push_back(step.query.back() + *rc::gen::inRange(0, 90));
    order.insert(order.begin() + *rc::gen::inRange(0, i + 1), i);
  }
  auto next = order.begin();
  for (int32_t prefix = *rc::gen::element(0, 1, 2, 3, 3); prefix > 0; --prefix) {
    const auto left = static_cast<int32_t>(order.end() - next);
    if (left < 2) break;
    const SharedKeys keys{.first = static_cast<int32_t>(step.shared_seqs.size()),
                          .count = *rc::gen::inRange(2, left + 1),
                          .num_keys = 64 * *rc::gen::inRange(1, 6)};
    for (int32_t i = 0; i < keys.count; ++i) {
      step.context[static_cast<size_t>(*next)] += keys.num_keys;
      step.shared_seqs.push_back(*next++);
    }
    step.shared_keys.push_back(keys);
  }
  step.shape.heads.num_kv_heads = *rc::gen::inRange(1, 4);
  step.shape.heads.num_heads =
      step.shape.heads.num_kv_heads * *rc::gen::element(1, 3, 4, 8, 17, 32, 33);
  step.shape.heads.key_dim = step.shape.heads.value_dim = *rc::gen::element(64, 128, 256);
  const int64_t tokens = *rc::gen::element(0, 0, 0, 1, 100, 250);
  step.shape.pattern =
      *rc::gen::element(AttentionPattern::Window(tokens), AttentionPattern::Chunk(tokens));
  step.shape.most_seqs = num_seqs;
  step.shape.most_tokens = num_seqs * 5;
  return step;
}

struct Row {
  int32_t token, head, position;
  auto operator<=>(const Row&) const = default;
};

// Returns what the kernel makes of row `row` of an item (LaneRows).
Row RowOf(const CudaAttentionPlan& plan, const std::vector<int32_t>& first_tokens,
          const AttentionItem& item, int32_t row) {
  const int32_t query = (item.first_row + row) / plan.group();
  const int32_t head = item.kv_head * plan.group() + (item.first_row + row) % plan.group();
  if (item.first_member >= 0) {
    const SharedMember member = plan.members().at(static_cast<size_t>(item.first_member + query));
    return {member.token, head, member.position};
  }
  return {first_tokens[static_cast<size_t>(item.seq)] + query, head, item.first_position + query};
}

TEST(SharedUnitsTest, EveryRowTakesEveryKeyThatItSeesOnceAndMergesItsPieces) {
  int num_shared = 0;
  EXPECT_TRUE(rc::check([&] {
    const Step step = AnyStep(*rc::gen::arbitrary<bool>());
    AttentionPlanArgs args = step.Args();
    args.fixed_launches = std::ranges::all_of(step.query, [](int32_t n) { return n == 1; }) &&
                          *rc::gen::arbitrary<bool>();
    CudaAttentionPlan plan;
    RC_ASSERT(
        plan.Build(args, {.grid_size = *rc::gen::element(1, 2, 7, 40, 264), .shares_keys = true})
            .ok());
    if (plan.decodes() != nullptr) {
      RC_ASSERT(plan.members().empty());
      return;
    }
    num_shared += plan.members().empty() ? 0 : 1;
    std::vector<int32_t> first_tokens = {0};
    for (const int32_t n : step.query) first_tokens.push_back(first_tokens.back() + n);
    std::map<Row, std::vector<int>> taken;          // by key
    std::map<Row, std::vector<int32_t>> pieces_of;  // partial rows
    std::vector<int> writers(static_cast<size_t>(plan.num_partial_rows()));
    RC_ASSERT(plan.parts().size() <= 1u);  // one launch for both kinds of units
    for (const CudaAttentionPlan::Part& part : plan.parts()) {
      const int32_t tile_keys = AttentionTileKeys(plan.value_dim());
      for (const AttentionItem& item : part.items) {
        RC_ASSERT(item.key_begin < item.key_end);
        RC_ASSERT(item.num_rows <= kMostItemRows);
        // The keys of a tile after those of an item must be hidden by the positions of its rows.
        RC_ASSERT(item.first_member < 0 || item.key_end % tile_keys == 0);
        for (int32_t i = 0; i < item.num_rows; ++i) {
          const Row row = RowOf(plan, first_tokens, item, i);
          auto& keys = taken[row];
          keys.resize(static_cast<size_t>(row.position) + 1);
          for (int32_t key = item.key_begin; key < item.key_end; ++key) {
            if (key > row.position) continue;  // masked
            if (testing::Sees(args.pattern, row.position, key, row.head)) {
              ++keys[static_cast<size_t>(key)];
            }
          }
          if (item.partial < 0) continue;
          pieces_of[row].push_back(item.partial + i);
          ++writers.at(static_cast<size_t>(item.partial + i));
        }
        // The keys that SeenByAll finds for the item.
        const int32_t last_query = (item.first_row + item.num_rows - 1) / plan.group();
        const auto begin =
            static_cast<int32_t>(args.pattern.FirstKey(item.first_position + last_query));
        const int32_t end = item.first_position + item.first_row / plan.group() + 1;
        for (int32_t i = 0; i < item.num_rows; ++i) {
          const Row row = RowOf(plan, first_tokens, item, i);
          for (int32_t key = std::max(begin, item.key_begin); key < std::min(end, item.key_end);
               ++key) {
            RC_ASSERT(testing::Sees(args.pattern, row.position, key, row.head));
          }
        }
      }
    }
    RC_ASSERT(std::ranges::all_of(writers, [](int n) { return n <= 1; }));
    RC_ASSERT(std::ssize(taken) == int64_t{first_tokens.back()} * plan.num_heads());
    for (const auto& [row, keys] : taken) {
      for (int32_t key = 0; key <= row.position; ++key) {
        const bool sees = testing::Sees(args.pattern, row.position, key, row.head);
        RC_ASSERT(keys[static_cast<size_t>(key)] == (sees ? 1 : 0));
      }
    }
    size_t num_merged = 0;
    for (const AttentionMerge& merge : plan.merges()) {
      for (int32_t i = 0; i < merge.num_rows; ++i, ++num_merged) {
        const AttentionItem unit{.seq = merge.seq,
                                 .kv_head = merge.kv_head,
                                 .first_row = merge.first_row,
                                 .first_position = step.context[static_cast<size_t>(merge.seq)] -
                                                   step.query[static_cast<size_t>(merge.seq)]};
        std::vector<int32_t> merged;
        for (int32_t piece = 0; piece < merge.num_items; ++piece) {
          merged.push_back(merge.partial + piece * merge.num_rows + i);
        }
        for (int32_t piece = 0; piece < merge.num_shared_items; ++piece) {
          merged.push_back(merge.shared_partial + piece * merge.shared_rows + i);
        }
        std::vector<int32_t> want = pieces_of[RowOf(plan, first_tokens, unit, i)];
        std::ranges::sort(merged);
        std::ranges::sort(want);
        RC_ASSERT(merged == want);
      }
    }
    RC_ASSERT(num_merged == pieces_of.size());
  }));
  EXPECT_GT(num_shared, 0);
}

// Recordings are replayed for other steps of as many sequences, and memory is reserved once.
TEST(SharedUnitsTest, FixedLaunchesDependOnTheSequencesAloneAndFitTheLargestPlan) {
  EXPECT_TRUE(rc::check([] {
    const Step step = AnyStep(/*decodes=*/true);
    AttentionPlanArgs args = step.Args();
    args.fixed_launches = *rc::gen::arbitrary<bool>();
    const AttentionPlanOptions options{.grid_size = *rc::gen::element(1, 7, 264),
                                       .shares_keys = true};
    CudaAttentionPlan plan;
    RC_ASSERT(plan.Build(args, options).ok());
    if (plan.decodes() != nullptr) return;
    const PlanSizes largest = LargestPlan(args, options);
    int64_t items = 0, block_starts = 0;
    for (const CudaAttentionPlan::Part& part : plan.parts()) {
      RC_ASSERT(std::ssize(part.items) <= part.room);
      items += part.room;
      block_starts += std::ssize(part.block_starts);
    }
    RC_ASSERT(items <= largest.items && std::ssize(plan.merges()) <= largest.merges);
    RC_ASSERT(block_starts <= largest.block_starts);
    RC_ASSERT(plan.num_partial_rows() <= largest.partial_rows);
    RC_ASSERT(std::ssize(plan.members()) <= largest.members);
    if (!args.fixed_launches || plan.members().empty()) return;

    // The same sequences, two of which share the fewest keys.
    const std::vector<int32_t> two = {0, 1};
    const std::vector<SharedKeys> fewest = {{.first = 0, .count = 2, .num_keys = 64}};
    std::vector<int32_t> contexts = step.context;
    contexts[0] = contexts[1] = 65;
    args.context_lens = contexts;
    args.shared_seqs = two;
    args.shared_keys = fewest;
    CudaAttentionPlan other;
    RC_ASSERT(other.Build(args, options).ok());
    RC_ASSERT(other.merges().size() == plan.merges().size());
    RC_ASSERT(other.num_partial_rows() == plan.num_partial_rows());
    RC_ASSERT(other.parts().size() == plan.parts().size());
    for (size_t i = 0; i < plan.parts().size(); ++i) {
      RC_ASSERT(other.parts()[i].room == plan.parts()[i].room);
      RC_ASSERT(other.parts()[i].block_starts.size() == plan.parts()[i].block_starts.size());
    }
  }));
}

// Returns the units of decodes of these lengths, which share 128 keys, in one KV head.
std::vector<AttentionItem> UnitsOf(const std::vector<int32_t>& context, int32_t num_heads,
                                   const AttentionPattern& pattern) {
  const std::vector<int32_t> query(context.size(), 1);
  std::vector<int32_t> seqs(context.size());
  std::iota(seqs.begin(), seqs.end(), 0);
  const std::vector<SharedKeys> keys = {
      {.count = static_cast<int32_t>(context.size()), .num_keys = 128}};
  SharedUnits shared;
  shared.Build({.context_lens = context,
                .query_lens = query,
                .heads = {num_heads, 1, 64, 64},
                .pattern = pattern,
                .shared_seqs = seqs,
                .shared_keys = keys});
  std::vector<AttentionItem> units;
  shared.AddTo(units);
  return units;
}

// The last row of a unit gets the largest position of its members, so SeenByAll knows of which
// tiles all rows see all keys.
TEST(SharedUnitsTest, AUnitKnowsItsLastPositionAndHasTheRowsOfItsMembers) {
  const std::vector<int32_t> context = {130, 300, 200, 150};
  for (const int32_t num_heads : {1, 8, 9, 16}) {
    const auto units = UnitsOf(context, num_heads, {});
    ASSERT_EQ(units.size(), 1);
    EXPECT_EQ(units[0].first_position + units[0].num_rows / num_heads - 1, 299);
    EXPECT_EQ(units[0].num_rows, 4 * num_heads);
  }
  EXPECT_EQ(UnitsOf(context, 17, {}).size(), 2);  // of 3 members and of one
}

TEST(SharedUnitsTest, KeysThatHaveLeftTheWindowsOfAllMembersButOneAreNotShared) {
  const auto window = AttentionPattern::Window(100);
  EXPECT_EQ(UnitsOf({227, 227}, 4, window).size(), 1);  // both see key 127
  EXPECT_EQ(UnitsOf({227, 228}, 4, window).size(), 0);
  EXPECT_EQ(UnitsOf({228, 228}, 4, window).size(), 0);
}

TEST(SharedUnitsTest, SharedKeysThatContradictTheStepAreRefused) {
  const std::vector<int32_t> context = {200, 200, 129}, query = {1, 1, 1};
  const auto message = [&](std::vector<int32_t> seqs, SharedKeys keys,
                           const AttentionPlanOptions& options = {.shares_keys = true}) {
    const std::vector<SharedKeys> all = {keys};
    CudaAttentionPlan plan;
    const absl::Status status = plan.Build({.context_lens = context,
                                            .query_lens = query,
                                            .heads = {4, 2, 64, 64},
                                            .shared_seqs = seqs,
                                            .shared_keys = all},
                                           options);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  EXPECT_EQ(message({0, 1, 2}, {.count = 3, .num_keys = 128}), "");
  const std::string_view each_once = "plan: want sequences of the step in shared_seqs, each once, ";
  EXPECT_EQ(message({0, 3}, {.count = 2, .num_keys = 64}), std::string(each_once) + "got 3");
  EXPECT_EQ(message({0, -1}, {.count = 2, .num_keys = 64}), std::string(each_once) + "got -1");
  EXPECT_EQ(message({1, 1}, {.count = 2, .num_keys = 64}), std::string(each_once) + "got 1");
  const std::string_view two = "plan: want shared keys of two sequences or more of shared_seqs, ";
  EXPECT_EQ(message({0, 1}, {.count = 1, .num_keys = 64}), std::string(two) + "got 1 from 0");
  EXPECT_EQ(message({0, 1}, {.first = 1, .count = 2, .num_keys = 64}),
            std::string(two) + "got 2 from 1");
  EXPECT_EQ(message({0, 1}, {.first = -1, .count = 2, .num_keys = 64}),
            std::string(two) + "got 2 from -1");
  EXPECT_EQ(message({0, 1}, {.count = 2, .num_keys = 32}),
            "plan: want shared keys, a multiple of 64, before position 199, got 32");
  EXPECT_EQ(message({0, 1}, {.count = 2, .num_keys = 0}),
            "plan: want shared keys, a multiple of 64, before position 199, got 0");
  EXPECT_EQ(message({0, 2}, {.count = 2, .num_keys = 192}),
            "plan: want shared keys, a multiple of 64, before position 128, got 192");
  EXPECT_EQ(message({}, {}, {.fixed_split = true, .shares_keys = true}),
            "plan: want no shared keys with a fixed split, got both");
}

}  // namespace
}  // namespace quire::kernels::cuda
