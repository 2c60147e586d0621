#include "tests/kernels/cuda/paged_attention_testing.h"

#include <algorithm>
#include <initializer_list>
#include <random>
#include <utility>

#include "gtest/gtest.h"

namespace quire::testing {
namespace {

template <typename T>
T Pick(std::mt19937_64& engine, std::initializer_list<T> values) {
  return values.begin()[std::uniform_int_distribution<size_t>(0, values.size() - 1)(engine)];
}

}  // namespace

using kernels::AttentionPattern;
using kernels::DType;
using kernels::cuda::AttentionPlanOptions;
using kernels::cuda::CudaAttentionPlan;
using kernels::cuda::PagedAttentionOp;

AttentionAnswer Attend(kernels::cuda::Device& device, const AttentionCase& c,
                       const AttentionBatch& batch, kernels::cuda::MatrixInstruction prefill) {
  AttentionOnDevice on_device(device, batch);
  AttentionPlanOptions options{.shares_keys = !c.shared.empty(),
                               .skips_far_keys = c.skips_far_keys};
  if (c.fixed_split_keys != 0) {
    options.fixed_split = true;
    options.fixed_split_keys = c.fixed_split_keys;
    options.part_rows = c.part_rows;
  }
  PagedAttentionOp op(device, options, prefill);
  const auto plan = op.Plan(batch.PlanArgs());
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  if (!plan.ok()) return {};
  on_device.args.plan = *plan;
  const absl::Status status = op.Run(on_device.args);
  EXPECT_TRUE(status.ok()) << status.ToString();
  const auto& cuda_plan = static_cast<const CudaAttentionPlan&>(**plan);
  AttentionAnswer answer{.out = on_device.out.ToHost(),
                         .row_tiles = {},
                         .num_parts = cuda_plan.parts().size(),
                         .merges = std::vector<int32_t>(c.sequences.size()),
                         .num_partial_rows = cuda_plan.num_partial_rows()};
  for (const auto& part : cuda_plan.parts()) {
    answer.prefill |= part.prefill;
    for (const auto& item : part.items) {
      if (!part.prefill) {
        answer.row_tiles.insert(kernels::cuda::ItemRowTiles(item.num_rows, c.head_dim));
      }
      const int64_t num_keys = item.key_end - item.key_begin;
      if (item.first_member >= 0) answer.shared_keys += num_keys;
      if (item.num_tiles == 0) answer.keys += num_keys;
    }
  }
  for (const auto& merge : cuda_plan.merges()) ++answer.merges[static_cast<size_t>(merge.seq)];
  return answer;
}

AttentionAnswer CheckInEveryOrder(const AttentionCase& c, const AttentionCheck& check) {
  const AttentionBatch batch(c);
  AttentionAnswer first;
  for (const ThreadOrder order : kAllThreadOrders) {
    const auto device = MakeDevice(order, check.seed);
    AttentionAnswer answer = Attend(*device, c, batch, check.prefill);
    if (order == kAllThreadOrders[0]) {
      first = std::move(answer);
      const double error = batch.Check(first.out, AttentionWeights::kRounded);
      if (check.worst != nullptr) *check.worst = std::max(*check.worst, error);
    } else {
      EXPECT_TRUE(SameBits(answer.out, first.out)) << "thread order " << static_cast<int>(order);
    }
  }
  return first;
}

void CheckSameAlone(const AttentionCase& c, size_t sequence, const AttentionAnswer& among,
                    const AttentionCheck& check) {
  AttentionCase alone = c;
  alone.sequences = {c.sequences[sequence]};
  const AttentionBatch crowd(c), single(alone);
  const auto device = MakeDevice(kAllThreadOrders[check.seed % 3], check.seed);
  const AttentionAnswer want = Attend(*device, alone, single, check.prefill);
  EXPECT_TRUE(SameBits(crowd.RowsOf(sequence, among.out), want.out));
  EXPECT_GT(want.num_partial_rows, 0);
  EXPECT_GT(want.merges[0], 0);
  EXPECT_EQ(among.merges[sequence], want.merges[0]);
}

std::vector<AttentionCase> ChosenAttentionCases() {
  constexpr DType kF16 = DType::kF16;
  return {
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
      AttentionCase{.sequences = {{70, 70}, {140, 40}, {33, 1}}, .num_heads = 4, .num_kv_heads = 2},
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
      AttentionCase{.sequences = {{129, 2}}, .pattern = AttentionPattern::Chunk(64)}};
}

AttentionCase WithRows(int32_t num_rows, int32_t group, int32_t head_dim) {
  const int32_t num_queries = (num_rows + group - 1) / group;
  return {.sequences = {{num_queries + 75, num_queries}},
          .num_heads = group,
          .num_kv_heads = 1,
          .head_dim = head_dim};
}

std::vector<AttentionCase> WideAttentionCases(std::span<const int32_t> head_dims) {
  std::vector<AttentionCase> cases;
  DType dtype = DType::kF16;
  for (const int32_t group : {3, 7, 71}) {
    for (const int32_t head_dim : head_dims) {
      dtype = dtype == DType::kF16 ? DType::kBF16 : DType::kF16;
      AttentionCase plain = WithRows(150, group, head_dim);
      plain.dtype = dtype;
      AttentionCase window = plain, chunk = plain;
      // A decode, and a prompt whose two units have keys of one tile alone.
      plain.sequences.push_back({90, 1});
      plain.sequences.push_back({130 / group + 2, 130 / group + 2});
      plain.alibi = true;
      window.pattern = AttentionPattern::Window(37);
      window.soft_cap = 2.0f;
      window.sinks = true;
      chunk.pattern = AttentionPattern::Chunk(32);
      chunk.scale = 0.3f;
      chunk.block_size = 64;
      cases.insert(cases.end(), {plain, window, chunk});
    }
  }
  return cases;
}

AttentionCase WithScales(AttentionCase c, const kernels::CacheScales& scales) {
  c.cache_dtype = DType::kF8E4M3;
  c.cache_scales = scales;
  c.scale = (c.scale != 0.0f ? c.scale : 1.0f / std::sqrt(static_cast<float>(c.head_dim))) /
            scales.k * 1.25f;
  return c;
}

kernels::CacheScales SomeCacheScales(uint64_t i) {
  constexpr kernels::CacheScales kScales[] = {{}, {0.0037f, 0.23f}, {19.0f, 7.0f}};
  return kScales[i % std::size(kScales)];
}

RandomAttention RandomAttentionCase(uint64_t seed, std::span<const int32_t> head_dims,
                                    std::span<const int32_t> row_tiles) {
  std::mt19937_64 engine(seed);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine);
  };
  const auto often = [&] { return between(0, 2) == 0; };
  RandomAttention random;
  AttentionCase& c = random.attention;
  c.head_dim = head_dims[seed % head_dims.size()];
  c.dtype = (seed + seed / (4 * head_dims.size())) % 2 == 0 ? DType::kBF16 : DType::kF16;
  c.block_size = 16 << seed % 4;
  const int32_t pinned_tiles = row_tiles[seed % row_tiles.size()];
  int32_t group = 0;
  do {
    group = Pick(engine, {1, 2, 3, 4, 5, 8, 16, 17, 32, 64, 71});
  } while (pinned_tiles < 4 && group > 16 * pinned_tiles);
  c.num_kv_heads = between(1, 2);
  c.num_heads = c.num_kv_heads * group;
  // A fixed split has only the smallest row tile.
  if (often() && pinned_tiles == (c.head_dim > 128 ? 2 : 1)) {
    c.fixed_split_keys = Pick(engine, {64, 128});
  }
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
  // A prefill has at least two query tokens. Its row tile is the largest there is, so it may have
  // more rows than one item.
  const bool prefill = pinned_tiles == kernels::cuda::kPrefillRowTiles;
  const int32_t fewest =
      pinned_tiles == 1 ? 1 : std::max(prefill ? 2 : 1, 8 * pinned_tiles / group + 1);
  const int32_t most = prefill             ? 300 / group
                       : pinned_tiles == 4 ? most_queries
                                           : 16 * pinned_tiles / group;
  pinned.query_len = between(fewest, std::max(fewest, most));
  pinned.context_len =
      std::max(pinned.query_len, c.fixed_split_keys > 0 ? between(200, 260) : pinned.context_len);
  return random;
}

}  // namespace quire::testing
