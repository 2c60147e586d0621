// Tests the order in which the CPU's attention folds the keys of a row: keys into segments of 256
// keys, segments into super-segments of 16 segments, and super-segments into the row.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "kernels/cpu/attention_plan.h"
#include "tests/kernels/cache_testing.h"
#include "tests/testing/seen_keys.h"

namespace quire::kernels {
namespace {

using testing::F32;
using testing::HeadShape;
using testing::IsaPaths;
using testing::MakeBackend;
using testing::Normal;
using testing::Owned;
using testing::PoisonedCache;
using testing::RandomSequence;
using testing::SequenceData;
using Chunk = testing::PoisonedCache::Chunk;

constexpr int64_t kSegment = 256, kSuperSegment = 16 * kSegment;
constexpr HeadShape kShape{.num_heads = 2, .num_kv_heads = 1, .head_dim = 8};
constexpr int64_t kRow = kShape.num_heads * kShape.head_dim;
constexpr int64_t kLength = 9000;
constexpr AttentionPattern kPatterns[] = {
    {},
    AttentionPattern::Window(700),
    // For the last query, at position 8999, the window begins at key 4000. This key is in the last
    // segment of the first super-segment.
    AttentionPattern::Window(5000),
    // For the last query, the window begins at key 3000, in the fifth segment from the end of the
    // first super-segment.
    AttentionPattern::Window(6000),
    // The last chunks begin at 8400, inside a segment, and at 6000, inside a super-segment.
    AttentionPattern::Chunk(700),
    AttentionPattern::Chunk(3000),
    // Patterns with holes. In the first two, the heads see different blocks. The last two hide
    // whole segments, some at the start of super-segments.
    AttentionPattern::Blocks(64, 3, 8, 1),
    AttentionPattern::Blocks(64, 1, 17, 3),
    AttentionPattern::Blocks(256, 2, 15, 0),
};

SequenceData LongSequence() {
  std::vector<int32_t> blocks(kLength / kShape.block_size + 1);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  return RandomSequence(kShape, kLength, 1, blocks);
}

// Computes the output of a query whose scores are all 0, by a scalar model of the fold. The weight
// of each key is then exactly 1. Only the sums of the values and the final division are rounded.
std::vector<float> FoldOfEqualWeights(const SequenceData& sequence, int64_t position,
                                      const AttentionPattern& pattern) {
  std::vector<float> row;
  for (int64_t i = 0; i < kRow; ++i) {
    const int64_t head = i / kShape.head_dim, d = i % kShape.head_dim;
    float total = 0.0f, super_segment = 0.0f, segment = 0.0f, num_seen = 0.0f;
    for (int64_t key = 0; key <= position; ++key) {
      if (testing::Sees(pattern, position, key, head)) {
        segment += sequence.value[key * kShape.head_dim + d];
        ++num_seen;
      }
      const int64_t next = key + 1;
      if (next % kSegment == 0 || next > position) {
        super_segment += segment;
        segment = 0.0f;
      }
      if (next % kSuperSegment == 0 || next > position) {
        total += super_segment;
        super_segment = 0.0f;
      }
    }
    row.push_back(total / num_seen);
  }
  return row;
}

// Returns the number of merges in the plan for `chunk`. A merge combines the partial results of
// rows whose segments are divided between several items.
size_t NumMerges(const Chunk& chunk, const AttentionPattern& pattern, int num_threads) {
  const std::vector<int32_t> context = {static_cast<int32_t>(chunk.end)};
  const std::vector<int32_t> query = {static_cast<int32_t>(chunk.end - chunk.begin)};
  cpu::CpuAttentionPlan plan;
  const absl::Status status = plan.Build(
      {.context_lens = context,
       .query_lens = query,
       .heads = {kShape.num_heads, kShape.num_kv_heads, kShape.head_dim, kShape.head_dim},
       .pattern = pattern},
      num_threads);
  EXPECT_TRUE(status.ok()) << status;
  return plan.merges().size();
}

TEST(AttentionFoldTest, SharedKeysReadOnceGiveTheSameBits) {
  constexpr int64_t kShared = 4500;  // of which 17 whole segments are read once
  constexpr int32_t kSharers = 12;   // more than one item has where heads share keys
  struct Case {
    HeadShape shape;
    bool alibi = false, sinks = false;
    float soft_cap = 0.0f;
    bool alibi_is_rounded = false;
  };
  const Case cases[] = {
      {{.num_heads = 6, .num_kv_heads = 2, .head_dim = 24, .dtype = DType::kF16}},
      {{.num_heads = 2, .num_kv_heads = 2, .head_dim = 16, .dtype = DType::kBF16}, true},
      {{.num_heads = 3, .num_kv_heads = 1, .head_dim = 8, .other_value_dim = 16},
       true,
       true,
       20.0f},
      {.shape = {.num_heads = 2, .num_kv_heads = 1, .head_dim = 16},
       .alibi = true,
       .alibi_is_rounded = true},
      {{.num_heads = 4, .num_kv_heads = 1, .dtype = DType::kF8E4M3, .scales = {0.5f, 2.0f}}},
  };
  for (const std::string& isa : IsaPaths()) {
    for (const Case& c : cases) {
      const int64_t block_size = c.shape.block_size;
      const int64_t shared_blocks = kShared / block_size, own_blocks = 40;
      std::vector<SequenceData> sequences;
      std::vector<int32_t> shared_seqs;
      std::vector<Chunk> step;
      for (int32_t seq = 0; seq <= kSharers; ++seq) {  // the last one shares nothing
        std::vector<int32_t> blocks;
        for (int64_t b = 0; b < shared_blocks + own_blocks; ++b) {
          const int64_t own = shared_blocks + seq * own_blocks + b - shared_blocks;
          blocks.push_back(static_cast<int32_t>(b < shared_blocks ? b : own));
        }
        const int64_t length = kShared + 1 + 16 * seq;
        sequences.push_back(RandomSequence(c.shape, length, 10 + seq, blocks));
        if (seq < kSharers) shared_seqs.push_back(kSharers - 1 - seq);
      }
      const Owned<float> slopes = F32({c.shape.num_heads}, Normal(5, c.shape.num_heads));
      const Owned<float> sinks = F32({c.shape.num_heads}, Normal(6, c.shape.num_heads));
      PagedAttentionArgs args{.scale = 0.2f, .soft_cap = c.soft_cap};
      if (c.alibi) args.alibi_slopes = slopes.view;
      args.alibi_is_rounded = c.alibi_is_rounded;
      if (c.sinks) args.sinks = sinks.view;
      std::vector<float> want;
      for (const int threads : {1, 5}) {
        const auto backend = MakeBackend(isa, threads);
        PoisonedCache cache(*backend, c.shape, shared_blocks + (kSharers + 1) * own_blocks);
        for (const SequenceData& sequence : sequences) {
          cache.Write(sequence, &sequence == &sequences[0] ? 0 : kShared / 16 * 16,
                      sequence.length);
        }
        step.clear();
        for (const SequenceData& sequence : sequences) {
          step.push_back({&sequence, sequence.length - 1, sequence.length});
        }
        if (want.empty()) want = cache.Attend(step, args);
        const std::vector<float> got =
            cache.Attend(step, args, shared_seqs,
                         {{.first = 0, .count = kSharers, .num_keys = kShared / 64 * 64}});
        ASSERT_EQ(got.size(), want.size());
        EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
            << isa << ", " << threads << " threads, head_dim " << c.shape.head_dim;
      }
    }
  }
}

TEST(AttentionFoldTest, SegmentsFoldIntoSuperSegmentsAndTheseIntoTheRow) {
  SequenceData sequence = LongSequence();
  std::fill(sequence.query.begin(), sequence.query.end(), 0.0f);
  const auto chunk = [&](int64_t begin, int64_t end) { return Chunk{&sequence, begin, end}; };
  const std::vector<std::vector<Chunk>> steps = {
      {chunk(4094, 4095)},
      {chunk(4095, 4096)},
      {chunk(4096, 4097)},
      {chunk(8999, 9000)},
      {chunk(4095, 4096), chunk(8999, 9000), chunk(4096, 4097), chunk(0, 300)},
      {chunk(4000, 4200), chunk(8150, 8250)},
  };
  // The plan for one thread does not divide a decode by segments. The plan for five threads does.
  EXPECT_EQ(NumMerges(steps[3][0], {}, 1), 0u);
  for (const AttentionPattern& pattern : kPatterns) {
    EXPECT_EQ(NumMerges(steps[3][0], pattern, 5), 1u) << ToString(pattern);
  }
  struct Machine {
    std::string name;
    std::unique_ptr<Backend> backend;
    PoisonedCache cache;
  };
  std::vector<Machine> machines;
  for (const std::string& isa : IsaPaths()) {
    for (const int threads : {1, 5}) {
      auto backend = MakeBackend(isa, threads);
      PoisonedCache cache(*backend, kShape, std::ssize(sequence.blocks));
      cache.Write(sequence, 0, kLength);
      machines.push_back(
          {absl::StrCat(isa, " threads ", threads), std::move(backend), std::move(cache)});
    }
  }
  for (const AttentionPattern& pattern : kPatterns) {
    for (const std::vector<Chunk>& step : steps) {
      std::vector<float> want;
      for (const Chunk& c : step) {
        for (int64_t position = c.begin; position < c.end; ++position) {
          const std::vector<float> row = FoldOfEqualWeights(sequence, position, pattern);
          want.insert(want.end(), row.begin(), row.end());
        }
      }
      for (Machine& machine : machines) {
        EXPECT_TRUE(machine.cache.Attend(step, {.scale = 1.0f, .pattern = pattern}) == want)
            << machine.name << " " << ToString(pattern) << " " << step.size()
            << " chunks, the first to " << step[0].end;
      }
    }
  }
}

TEST(AttentionFoldTest, NoDivisionOfALongContextChangesABit) {
  const SequenceData sequence = LongSequence();
  const auto single = MakeBackend("auto", 1), several = MakeBackend("auto", 3);
  PoisonedCache whole(*single, kShape, std::ssize(sequence.blocks));
  PoisonedCache divided(*several, kShape, std::ssize(sequence.blocks));
  whole.Write(sequence, 0, kLength);
  divided.Write(sequence, 0, kLength);
  for (const AttentionPattern& pattern : kPatterns) {
    const PagedAttentionArgs args{.scale = 0.5f, .pattern = pattern};
    const std::vector<float> want = whole.Attend({{&sequence, 0, kLength}}, args);
    const auto check = [&](const std::vector<Chunk>& step) {
      const std::vector<float> got = divided.Attend(step, args);
      const float* rows = got.data();
      for (const Chunk& chunk : step) {
        const int64_t count = (chunk.end - chunk.begin) * kRow;
        EXPECT_EQ(std::memcmp(rows, want.data() + chunk.begin * kRow, count * sizeof(float)), 0)
            << ToString(pattern) << " tokens " << chunk.begin << " to " << chunk.end;
        rows += count;
      }
    };
    check({{&sequence, 0, 1000}});
    check({{&sequence, 1000, kSuperSegment}, {&sequence, 0, 5}});
    check({{&sequence, kSuperSegment, kSuperSegment + 1}});
    check({{&sequence, 8999, kLength}, {&sequence, kSuperSegment + 1, 8999}});
    // Runs each decode alone and beside a decode of another length.
    for (const int64_t end : {4095, 4096, 4097, 4353, 8192, 8193, 9000}) {
      const Chunk decode{&sequence, end - 1, end};
      check({decode});
      check({{&sequence, 99, 100}, decode});
    }
  }
}

}  // namespace
}  // namespace quire::kernels
