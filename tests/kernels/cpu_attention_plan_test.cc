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
};

Lengths RandomLengths() {
  const auto number = [](int32_t low, int32_t high) {
    return *rc::gen::resize(100, rc::gen::inRange(low, high));
  };
  Lengths lengths;
  lengths.num_kv_heads = number(1, 5);
  lengths.group = *rc::gen::element(1, 2, 3, 4, 40);
  const int32_t num_seqs = number(1, 4);
  for (int32_t seq = 0; seq < num_seqs; ++seq) {
    const int32_t context = number(1, *rc::gen::element(200, 2500));
    lengths.context.push_back(context);
    lengths.query.push_back(std::min(context, *rc::gen::element(0, 1, 2, 70, 150)));
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

TEST(CpuAttentionPlanTest, ItemsReadEverySpanThatARowSeesOnceAndNoOther) {
  int num_divided = 0, num_unread = 0;
  EXPECT_TRUE(rc::check([&] {
    const Lengths lengths = RandomLengths();
    CpuAttentionPlan plan;
    RC_ASSERT(plan.Build({.context_lens = lengths.context,
                          .query_lens = lengths.query,
                          .heads = {.num_heads = lengths.num_kv_heads * lengths.group,
                                    .num_kv_heads = lengths.num_kv_heads,
                                    .key_dim = 8,
                                    .value_dim = 8},
                          .pattern = lengths.pattern},
                         *rc::gen::element(1, 2, 16))
                  .ok());
    num_divided += plan.merges().empty() ? 0 : 1;
    std::map<SpanOfWork, int> read = SpansRead(plan);
    // The query count of each item. All pieces of a divided item share one entry.
    std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> work;
    for (const CpuAttentionPlan::Item& item : plan.items()) {
      work[{item.seq, item.first_query, item.kv_head}] = item.num_queries;
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
  EXPECT_GT(num_divided, 10);
  EXPECT_GT(num_unread, 100);
}

}  // namespace
}  // namespace quire::kernels::cpu
