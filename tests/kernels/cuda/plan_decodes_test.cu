// Compares the plans that the device makes for decode steps with those that the host makes.

#include <algorithm>
#include <cstring>
#include <limits>
#include <rapidcheck.h>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/plan_decodes.cuh"
#include "kernels/cuda/device/launch.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::kernels::cuda {
namespace {

using testing::DeviceArray;
using testing::ThreadOrder;

struct Decodes {
  std::vector<int32_t> context_lens;
  AttentionHeads heads;
  AttentionPattern pattern;
  AttentionPlanOptions options;

  CudaAttentionPlan Plan(bool on_device) const {
    const std::vector<int32_t> query_lens(context_lens.size(), 1);
    CudaAttentionPlan plan;
    const absl::Status status = plan.Build({.context_lens = context_lens,
                                            .query_lens = query_lens,
                                            .heads = heads,
                                            .pattern = pattern,
                                            .fixed_launches = on_device},
                                           options);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return plan;
  }
};

Decodes AnyDecodes() {
  Decodes decodes;
  // More sequences than the kernels have threads, at times.
  const int32_t num_seqs = *rc::gen::oneOf(rc::gen::inRange(1, 12), rc::gen::just(300));
  for (int32_t i = 0; i < num_seqs; ++i) {
    decodes.context_lens.push_back(
        *rc::gen::oneOf(rc::gen::inRange(1, 200), rc::gen::resize(100, rc::gen::inRange(1, 9000))));
  }
  decodes.heads.num_kv_heads = *rc::gen::element(1, 2, 8);
  decodes.heads.num_heads = decodes.heads.num_kv_heads * *rc::gen::element(1, 4, 16, 71);
  decodes.heads.key_dim = decodes.heads.value_dim = *rc::gen::element(128, 256);
  const int64_t tokens = *rc::gen::element(0, 1, 100, 2000);
  decodes.pattern =
      *rc::gen::element(AttentionPattern::Window(tokens), AttentionPattern::Chunk(tokens));
  decodes.options = {.grid_size = *rc::gen::element(1, 3, 40, 264),
                     .fixed_split = *rc::gen::arbitrary<bool>(),
                     .fixed_split_keys = *rc::gen::element(64, 256),
                     // The device makes one part.
                     .part_rows = std::numeric_limits<int64_t>::max()};
  decodes.options.skips_far_keys = !decodes.options.fixed_split && *rc::gen::arbitrary<bool>();
  return decodes;
}

struct MadePlan {
  std::vector<AttentionItem> items;
  std::vector<int32_t> block_starts;
  std::vector<AttentionMerge> merges;
  AttentionQueue queue;
};

MadePlan MakeOnDevice(const Decodes& decodes, const DecodePlan& plan, ThreadOrder order) {
  const auto device = testing::MakeDevice(order);
  const auto num_seqs = static_cast<int64_t>(decodes.context_lens.size());
  DeviceArray<int32_t> context_lens(*device, decodes.context_lens);
  DeviceArray<AttentionItem> items(*device, plan.most_items);
  DeviceArray<int32_t> block_starts(*device, plan.num_ranges + 1);
  DeviceArray<AttentionMerge> merges(*device, num_seqs * plan.units.per_seq());
  DeviceArray<AttentionQueue> queue(*device, 1);
  EXPECT_TRUE(
      Launch(
          *device,
          {.grid = {2},
           .block = {kPlanThreads},
           .shared_bytes = PlanSharedBytes(num_seqs, plan.num_ranges, decodes.options.fixed_split)},
          decodes.options.fixed_split ? &PlanDecodesKernel<true> : &PlanDecodesKernel<false>,
          {.context_lens = context_lens.data(),
           .items = items.data(),
           .block_starts = block_starts.data(),
           .merges = merges.data(),
           .queue = decodes.options.skips_far_keys ? queue.data() : nullptr,
           .pattern = decodes.pattern,
           .units = plan.units,
           .num_seqs = static_cast<int>(num_seqs),
           .tile_keys = AttentionTileKeys(decodes.heads.value_dim),
           .num_ranges = plan.num_ranges,
           .fixed_split_tiles = plan.fixed_split_tiles})
          .ok());
  return {items.ToHost(), block_starts.ToHost(), merges.ToHost(), queue.ToHost()[0]};
}

// Checks that the pieces of cut units have partial rows of their own, and that `merges` has an
// entry for each unit, which is empty if the unit is not cut.
void CheckMerges(const MadePlan& made, const std::vector<AttentionItem>& items,
                 int32_t num_partial_rows) {
  std::vector<bool> used(static_cast<size_t>(num_partial_rows));
  size_t unit = 0;
  for (size_t i = 0; i < items.size(); ++unit) {
    RC_ASSERT(unit < made.merges.size());
    const AttentionMerge& merge = made.merges[unit];
    const AttentionItem& first = made.items[i];
    if (items[i].partial < 0) {
      RC_ASSERT(first.partial == -1 && merge.num_rows == 0 && merge.num_items == 0);
      ++i;
      continue;
    }
    RC_ASSERT(merge.seq == first.seq && merge.kv_head == first.kv_head);
    RC_ASSERT(merge.first_row == first.first_row && merge.num_rows == first.num_rows);
    RC_ASSERT(merge.partial == first.partial && merge.num_items >= 1);
    for (int32_t piece = 0; piece < merge.num_items; ++piece, ++i) {
      const AttentionItem& item = made.items[i];
      RC_ASSERT(item.seq == first.seq && item.kv_head == first.kv_head);
      RC_ASSERT(item.first_row == first.first_row);
      RC_ASSERT(item.partial == first.partial + piece * item.num_rows);
      for (int32_t row = item.partial; row < item.partial + item.num_rows; ++row) {
        RC_ASSERT(row < num_partial_rows && !used[static_cast<size_t>(row)]);
        used[static_cast<size_t>(row)] = true;
      }
    }
  }
  RC_ASSERT(unit == made.merges.size());
}

// Checks that no block of a fixed split has more tiles than a block's share and one piece.
void CheckShares(const std::vector<AttentionItem>& items, const std::vector<int32_t>& block_starts,
                 int32_t tile_keys) {
  const auto tiles = [&](size_t i) {
    return (items[i].key_end - 1) / tile_keys + 1 - items[i].key_begin / tile_keys;
  };
  int64_t total = 0, longest = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    total += tiles(i);
    longest = std::max<int64_t>(longest, tiles(i));
  }
  const int64_t grid_size = std::ssize(block_starts) - 1;
  RC_ASSERT(block_starts.front() == 0 && block_starts.back() == std::ssize(items));
  for (size_t block = 0; block + 1 < block_starts.size(); ++block) {
    RC_ASSERT(block_starts[block] <= block_starts[block + 1]);
    int64_t share = 0;
    for (int32_t i = block_starts[block]; i < block_starts[block + 1]; ++i) {
      share += tiles(static_cast<size_t>(i));
    }
    RC_ASSERT(share <= (total + grid_size - 1) / grid_size + longest);
  }
}

TEST(PlanDecodesTest, AreThePlansOfTheHost) {
  bool cuts[2] = {};
  EXPECT_TRUE(rc::check([&] {
    const Decodes decodes = AnyDecodes();
    const CudaAttentionPlan host = decodes.Plan(false), sizes = decodes.Plan(true);
    RC_ASSERT(host.parts().size() == 1u && sizes.parts().empty() && sizes.decodes() != nullptr);
    const CudaAttentionPlan::Part& part = host.parts()[0];
    RC_ASSERT(sizes.decodes()->most_items >= std::ssize(part.items));
    RC_ASSERT(sizes.most_merge_rows() >= host.most_merge_rows());
    const ThreadOrder order =
        *rc::gen::element(ThreadOrder::kForward, ThreadOrder::kReverse, ThreadOrder::kRandom);
    const MadePlan made = MakeOnDevice(decodes, *sizes.decodes(), order);
    for (size_t i = 0; i < part.items.size(); ++i) {
      AttentionItem want = part.items[i];
      // If the heads of a group make several units, the device leaves room after the last of them.
      if (want.partial >= 0) want.partial = made.items[i].partial;
      RC_ASSERT(std::memcmp(&made.items[i], &want, sizeof(want)) == 0);
    }
    CheckMerges(made, part.items, sizes.num_partial_rows());
    if (decodes.options.fixed_split) {
      CheckShares(part.items, made.block_starts, AttentionTileKeys(decodes.heads.value_dim));
    } else {
      std::vector<int32_t> want = part.block_starts;
      int32_t most_rows = 1;
      for (const AttentionItem& item : part.items) most_rows = std::max(most_rows, item.num_rows);
      const int32_t row_tiles = ItemRowTiles(most_rows, decodes.heads.value_dim);
      const int32_t num_ranges = NumRanges(row_tiles, decodes.options);
      want.resize(static_cast<size_t>(num_ranges) + 1, want.back());
      RC_ASSERT(made.block_starts == want);
      if (decodes.options.skips_far_keys) {
        RC_ASSERT(num_ranges == 8 / row_tiles * decodes.options.grid_size);
        RC_ASSERT(made.queue.num_drawn == 0 && made.queue.num_left == 0);
      }
    }
    cuts[decodes.options.fixed_split] |= !host.merges().empty();
  }));
  EXPECT_TRUE(cuts[false] && cuts[true]);
}

TEST(PlanDecodesTest, MorePartialRowsThanAnIndexCountsAreRefused) {
  Decodes decodes = {
      .context_lens = std::vector<int32_t>(1000, 1 << 20),
      .heads = {.num_heads = 64, .num_kv_heads = 1, .key_dim = 128, .value_dim = 128},
      .options = {.fixed_split = true, .fixed_split_keys = 1024}};
  const std::vector<int32_t> query_lens(1000, 1);
  CudaAttentionPlan plan;
  decodes.options.max_partial_rows = 1000 * 1024 * 64;
  EXPECT_EQ(plan.Build({.context_lens = decodes.context_lens,
                        .query_lens = query_lens,
                        .heads = decodes.heads,
                        .fixed_launches = true},
                       decodes.options)
                .message(),
            "plan: want at most 65536000 partial rows, got 67108864 of 1000 decodes");
}

}  // namespace
}  // namespace quire::kernels::cuda
