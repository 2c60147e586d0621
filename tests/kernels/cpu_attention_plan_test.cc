#include <algorithm>
#include <map>
#include <rapidcheck.h>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/kernel_table.h"
#include "tests/testing/seen_keys.h"

namespace quire::kernels::cpu {
namespace {

struct Lengths {
  std::vector<int32_t> context, query;
  int32_t num_kv_heads = 1, group = 1;
  AttentionPattern pattern;
  std::vector<int32_t> shared_seqs;
  std::vector<SharedKeys> shared_keys;
};

// Makes some decodes share keys, in one or two groups.
void ShareKeys(Lengths& lengths) {
  std::vector<int32_t> decodes;
  for (int32_t seq = 0; seq < static_cast<int32_t>(lengths.query.size()); ++seq) {
    if (lengths.query[seq] == 1 && lengths.context[seq] > AttentionPattern::kTileKeys) {
      decodes.push_back(seq);
    }
  }
  const size_t half = decodes.size() / 2;
  for (const size_t count : {half, decodes.size() - half}) {
    if (count < 2) continue;
    const auto first = static_cast<int32_t>(lengths.shared_seqs.size());
    int32_t least = 1 << 30;
    for (size_t i = 0; i < count; ++i) {
      lengths.shared_seqs.push_back(decodes[static_cast<size_t>(first) + i]);
      least = std::min(least, lengths.context[lengths.shared_seqs.back()] - 1);
    }
    const int32_t most = least / AttentionPattern::kTileKeys;
    lengths.shared_keys.push_back({.first = first,
                                   .count = static_cast<int32_t>(count),
                                   .num_keys = *rc::gen::inRange(1, most + 1) *
                                               static_cast<int32_t>(AttentionPattern::kTileKeys)});
  }
}

Lengths RandomLengths() {
  const auto number = [](int32_t low, int32_t high) {
    return *rc::gen::resize(100, rc::gen::inRange(low, high));
  };
  Lengths lengths;
  lengths.num_kv_heads = number(1, 5);
  lengths.group = *rc::gen::element(1, 2, 3, 4, 40);
  const bool shares = *rc::gen::arbitrary<bool>();
  const int32_t num_seqs = shares ? number(2, 40) : number(1, 4);
  for (int32_t seq = 0; seq < num_seqs; ++seq) {
    const int32_t context = shares ? number(270, 2500) : number(1, *rc::gen::element(200, 2500));
    lengths.context.push_back(context);
    lengths.query.push_back(std::min(
        context, shares && *rc::gen::inRange(0, 4) > 0 ? 1 : *rc::gen::element(0, 1, 2, 70, 150)));
  }
  if (shares) {
    ShareKeys(lengths);
    return lengths;
  }
  const int32_t stride = number(1, 20);
  lengths.pattern = *rc::gen::element(
      AttentionPattern(), AttentionPattern::Window(number(1, 900)),
      AttentionPattern::Chunk(number(1, 900)),
      AttentionPattern::Blocks(64 * number(1, 5), number(1, 4), stride, number(0, stride + 1)));
  return lengths;
}

// Work that reads one span of keys: the sequence, the first query, the KV head and the span.
using SpanOfWork = std::tuple<int32_t, int32_t, int32_t, int32_t>;

// Returns how often the items of `plan` read each span, and checks that each list is within its
// segments and ascends.
std::map<SpanOfWork, int> SpansRead(const CpuAttentionPlan& plan) {
  constexpr int32_t kSegmentSpans = kSegmentKeys / kSpanKeys;
  std::map<SpanOfWork, int> spans;
  for (const CpuAttentionPlan::Item& item : plan.items()) {
    const int32_t start = plan.context_len(item.seq) - plan.query_len(item.seq);
    int32_t begin = item.segment_begin * kSegmentSpans, end = item.segment_end * kSegmentSpans;
    if (item.first_sharer >= 0) {
      RC_ASSERT(item.partials >= 0 && item.num_queries > 1);
      for (int32_t i = 0; i < item.num_queries; ++i) {
        const int32_t seq = plan.sharers().at(static_cast<size_t>(item.first_sharer + i));
        RC_ASSERT(plan.query_len(seq) == 1 && end * kSpanKeys < plan.context_len(seq));
        for (int32_t span = begin; span < end; ++span) ++spans[{seq, 0, item.kv_head, span}];
      }
      continue;
    }
    RC_ASSERT((item.first_tile >= 0) == plan.pattern().has_holes());
    if (item.first_tile < 0) {
      const int64_t first_key = plan.pattern().FirstKey(start + item.first_query);
      begin = std::max(begin, static_cast<int32_t>(first_key / kSpanKeys));
      end = std::min(end, (start + item.first_query + item.num_queries - 1) / kSpanKeys + 1);
      for (int32_t span = begin; span < end; ++span) {
        ++spans[{item.seq, item.first_query, item.kv_head, span}];
      }
      continue;
    }
    for (int32_t i = item.first_tile; i < item.first_tile + item.num_tiles; ++i) {
      const int32_t span = plan.tiles().at(static_cast<size_t>(i)).tile;
      RC_ASSERT(begin <= span && span < end);
      ++spans[{item.seq, item.first_query, item.kv_head, span}];
      begin = span + 1;
    }
  }
  return spans;
}

// Checks that the states of each segment of merged rows are written by one item, and that the merge
// of the rows reads them.
void CheckStates(const CpuAttentionPlan& plan) {
  const int64_t state_floats = StateFloats(plan.value_dim());
  // By the place of a state: the sequence, the first query, the KV head, the row and the segment.
  std::map<int64_t, std::tuple<int32_t, int32_t, int32_t, int64_t, int32_t>> written;
  for (const CpuAttentionPlan::Item& item : plan.items()) {
    if (item.partials < 0) continue;
    const int64_t rows = int64_t{item.num_queries} * plan.group();
    for (int32_t s = item.segment_begin; s < item.segment_end; ++s) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t place =
            item.partials + ((s - item.segment_begin) * rows + row) * state_floats;
        RC_ASSERT(place + state_floats <= plan.partial_floats());
        const int32_t seq =
            item.first_sharer < 0
                ? item.seq
                : plan.sharers()[static_cast<size_t>(item.first_sharer + row / plan.group())];
        const int64_t row_of_seq = item.first_sharer < 0 ? row : row % plan.group();
        RC_ASSERT(
            written.try_emplace(place, seq, item.first_query, item.kv_head, row_of_seq, s).second);
      }
    }
  }
  for (const CpuAttentionPlan::Merge& merge : plan.merges()) {
    for (int64_t row = 0; row < int64_t{merge.num_queries} * plan.group(); ++row) {
      int32_t segment = merge.first_segment;
      for (const CpuAttentionPlan::States& states : {merge.shared, merge.own}) {
        for (int32_t s = 0; s < states.num_segments; ++s, ++segment) {
          const auto at = written.find(states.partials + s * states.stride + row * state_floats);
          RC_ASSERT(at != written.end());
          RC_ASSERT(at->second ==
                    std::tuple(merge.seq, merge.first_query, merge.kv_head, row, segment));
          written.erase(at);
        }
      }
    }
  }
  RC_ASSERT(written.empty());
}

TEST(CpuAttentionPlanTest, ItemsReadEverySpanThatARowSeesOnceAndNoOther) {
  int num_divided = 0, num_unread = 0, num_shared = 0;
  EXPECT_TRUE(rc::check([&] {
    const Lengths lengths = RandomLengths();
    CpuAttentionPlan plan;
    RC_ASSERT(plan.Build({.context_lens = lengths.context,
                          .query_lens = lengths.query,
                          .heads = {.num_heads = lengths.num_kv_heads * lengths.group,
                                    .num_kv_heads = lengths.num_kv_heads,
                                    .key_dim = 8,
                                    .value_dim = 8},
                          .pattern = lengths.pattern,
                          .shared_seqs = lengths.shared_seqs,
                          .shared_keys = lengths.shared_keys},
                         *rc::gen::element(1, 2, 16))
                  .ok());
    num_divided += plan.merges().empty() ? 0 : 1;
    num_shared += plan.sharers().empty() ? 0 : 1;
    CheckStates(plan);
    std::map<SpanOfWork, int> read = SpansRead(plan);
    // The query count of each item. All pieces of a divided item share one entry.
    std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> work;
    for (const CpuAttentionPlan::Item& item : plan.items()) {
      if (item.first_sharer < 0) {
        work[{item.seq, item.first_query, item.kv_head}] = item.num_queries;
      }
    }
    int64_t num_queries = 0;
    for (const auto& [key, count] : work) {
      const auto [seq, first_query, kv_head] = key;
      num_queries += count;
      const int64_t first = plan.context_len(seq) - plan.query_len(seq) + first_query;
      for (int32_t span = 0; span * kSpanKeys < first + count; ++span) {
        bool seen = false;
        for (int64_t query = first; query < first + count; ++query) {
          for (int32_t head = kv_head * lengths.group; head < (kv_head + 1) * lengths.group;
               ++head) {
            for (int64_t j = span * kSpanKeys; !seen && j < (span + 1) * kSpanKeys; ++j) {
              seen = testing::Sees(lengths.pattern, query, j, head);
            }
          }
        }
        const auto at = read.find({seq, first_query, kv_head, span});
        RC_ASSERT((at == read.end() ? 0 : at->second) == (seen ? 1 : 0));
        if (at != read.end()) read.erase(at);
        num_unread += seen ? 0 : 1;
      }
    }
    RC_ASSERT(read.empty());
    int64_t want = 0;
    for (const int32_t query : lengths.query) want += query;
    RC_ASSERT(num_queries == want * lengths.num_kv_heads);
  }));
  EXPECT_GT(num_divided, 0);
  EXPECT_GT(num_unread, 100);
  EXPECT_GT(num_shared, 0);
}

}  // namespace
}  // namespace quire::kernels::cpu
