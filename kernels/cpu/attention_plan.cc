#include "kernels/cpu/attention_plan.h"

#include <algorithm>
#include <tuple>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/ops/check.h"

namespace quire::kernels::cpu {
namespace {

// The most rows in an item, unless a single query token has more rows. With 32 rows, a loaded tile
// of K and V is reused often, and the states of the rows stay in L1.
constexpr int64_t kMaxRows = 32;
// The target number of items per thread. With several items per thread, the items that finish last
// are small, so threads idle only briefly at the end.
constexpr int64_t kItemsPerThread = 4;

}  // namespace

absl::Status CpuAttentionPlan::Build(const AttentionPlanArgs& args, int num_threads) {
  RETURN_IF_ERROR(Validate(args));
  items_.clear();
  merges_.clear();
  sharers_.clear();
  shared_.assign(args.context_lens.size(), {});
  lists_.Clear();
  partial_floats_ = 0;
  max_rows_ = 0;
  SetStep(args);
  int64_t total = 0;
  for (int64_t seq = 0; seq < num_seqs(); ++seq) {
    total += pattern().MostKeys(context_len(seq)) * query_len(seq) * num_heads();
  }
  const int64_t target = total / (num_threads * kItemsPerThread) + 1;
  const int64_t target_cost = num_threads == 1 ? total + 1 : target;
  AddShared(args, target_cost);
  for (int64_t seq = 0; seq < num_seqs(); ++seq) {
    AddItems(static_cast<int32_t>(seq), target_cost);
  }
  // The most costly items come first. Items of equal cost are ordered by their place in the step,
  // so that equal steps give equal plans.
  std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
    return std::tuple(-a.cost, a.first_sharer, a.seq, a.first_query, a.kv_head, a.segment_begin) <
           std::tuple(-b.cost, b.first_sharer, b.seq, b.first_query, b.kv_head, b.segment_begin);
  });
  return absl::OkStatus();
}

void CpuAttentionPlan::TakeTiles(const TileLists::Range& list, Item& item) const {
  const auto begins_before = [](const SeenTile& seen, int64_t key) {
    return seen.tile * int64_t{kSpanKeys} < key;
  };
  const auto first = tiles().begin() + list.begin, last = tiles().begin() + list.end;
  const auto begin =
      std::lower_bound(first, last, item.segment_begin * kSegmentKeys, begins_before);
  const auto end = std::lower_bound(begin, last, item.segment_end * kSegmentKeys, begins_before);
  item.first_tile = static_cast<int32_t>(begin - tiles().begin());
  item.num_tiles = static_cast<int32_t>(end - begin);
}

void CpuAttentionPlan::AddShared(const AttentionPlanArgs& args, int64_t target_cost) {
  if (!pattern().sees_all()) return;
  const auto most = static_cast<size_t>(std::max<int64_t>(1, kMaxRows / group()));
  for (const SharedKeys& keys : args.shared_keys) {
    const int32_t num_segments = keys.num_keys / kSegmentKeys;
    if (num_segments == 0) continue;
    std::span<const int32_t> seqs =
        args.shared_seqs.subspan(static_cast<size_t>(keys.first), static_cast<size_t>(keys.count));
    // Items of about equal size. The last one of unequal items could have a single row.
    for (size_t left = base::CeilDiv(seqs.size(), most); left > 0; --left) {
      const size_t count = base::CeilDiv(seqs.size(), left);
      if (count > 1) AddSharers(seqs.first(count), num_segments, target_cost);
      seqs = seqs.subspan(count);
    }
  }
}

void CpuAttentionPlan::AddSharers(std::span<const int32_t> seqs, int32_t num_segments,
                                  int64_t target_cost) {
  const int64_t state_floats = StateFloats(value_dim());
  const int64_t rows = std::ssize(seqs) * group();
  const int64_t kv_head_stride = num_segments * rows * state_floats;
  max_rows_ = std::max(max_rows_, rows);
  const auto first_sharer = static_cast<int32_t>(sharers_.size());
  for (const int32_t seq : seqs) {
    const auto place = static_cast<int64_t>(sharers_.size()) - first_sharer;
    shared_[static_cast<size_t>(seq)] = {
        .states = {.partials = partial_floats_ + place * group() * state_floats,
                   .stride = rows * state_floats,
                   .num_segments = num_segments},
        .kv_head_stride = kv_head_stride};
    sharers_.push_back(seq);
  }
  const int64_t cost = rows * num_segments * kSegmentKeys;
  const auto pieces =
      static_cast<int32_t>(std::clamp<int64_t>(base::CeilDiv(cost, target_cost), 1, num_segments));
  for (int32_t kv_head = 0; kv_head < num_kv_heads(); ++kv_head) {
    AddPieces({.seq = seqs[0],
               .num_queries = static_cast<int32_t>(seqs.size()),
               .first_sharer = first_sharer,
               .kv_head = kv_head,
               .segment_begin = 0,
               .segment_end = num_segments,
               .cost = cost},
              partial_floats_, pieces);
    partial_floats_ += kv_head_stride;
  }
}

void CpuAttentionPlan::AddPieces(Item item, int64_t partials, int32_t pieces) {
  const int64_t rows = int64_t{item.num_queries} * group();
  const int64_t segment_floats = rows * StateFloats(value_dim());
  const int32_t begin = item.segment_begin, num_segments = item.segment_end - item.segment_begin;
  const int64_t cost = item.cost;
  const TileLists::Range list{item.first_tile, item.first_tile + item.num_tiles};
  for (int32_t piece = 0; piece < pieces; ++piece) {
    item.segment_begin = begin + num_segments * piece / pieces;
    item.segment_end = begin + num_segments * (piece + 1) / pieces;
    item.partials = partials + (item.segment_begin - begin) * segment_floats;
    item.cost = cost * (item.segment_end - item.segment_begin) / num_segments;
    if (pattern().has_holes()) {
      TakeTiles(list, item);
      item.cost = rows * item.num_tiles * kSpanKeys;
    }
    items_.push_back(item);
  }
}

void CpuAttentionPlan::AddItems(int32_t seq, int64_t target_cost) {
  const auto queries_per_item = static_cast<int32_t>(std::max<int64_t>(1, kMaxRows / group()));
  const int32_t start = context_len(seq) - query_len(seq);
  const Shared& shared = shared_[static_cast<size_t>(seq)];
  for (int32_t first = 0; first < query_len(seq); first += queries_per_item) {
    const int32_t count = std::min(queries_per_item, query_len(seq) - first);
    const int64_t rows = int64_t{count} * group();
    const int64_t first_key = pattern().FirstKey(start + first);
    const int64_t end_key = start + first + count;
    const auto first_segment = static_cast<int32_t>(first_key / kSegmentKeys);
    const auto segment_begin = first_segment + shared.states.num_segments;
    const auto segment_end = static_cast<int32_t>(base::CeilDiv(end_key, kSegmentKeys));
    const int32_t num_segments = segment_end - segment_begin;
    max_rows_ = std::max(max_rows_, rows);
    for (int32_t kv_head = 0; kv_head < num_kv_heads(); ++kv_head) {
      int64_t num_keys = end_key - std::max(first_key, segment_begin * int64_t{kSegmentKeys});
      Item item{.seq = seq,
                .first_query = first,
                .num_queries = count,
                .kv_head = kv_head,
                .segment_begin = segment_begin,
                .segment_end = segment_end};
      if (pattern().has_holes()) {
        const TileLists::Range list = lists_.Add(pattern(),
                                                 {.first_query = start + first,
                                                  .last_query = end_key - 1,
                                                  .first_head = int64_t{kv_head} * group(),
                                                  .num_heads = group()},
                                                 kSpanKeys);
        TakeTiles(list, item);
        num_keys = int64_t{list.end - list.begin} * kSpanKeys;
      }
      item.cost = rows * num_keys;
      const auto pieces = static_cast<int32_t>(
          std::clamp<int64_t>(base::CeilDiv(item.cost, target_cost), 1, num_segments));
      if (pieces == 1 && shared.states.num_segments == 0) {
        items_.push_back(item);
        continue;
      }
      Merge merge{.seq = seq,
                  .first_query = first,
                  .num_queries = count,
                  .kv_head = kv_head,
                  .first_segment = first_segment,
                  .shared = shared.states,
                  .own = {.partials = partial_floats_,
                          .stride = rows * StateFloats(value_dim()),
                          .num_segments = num_segments}};
      merge.shared.partials += kv_head * shared.kv_head_stride;
      merges_.push_back(merge);
      AddPieces(item, partial_floats_, pieces);
      partial_floats_ += num_segments * merge.own.stride;
    }
  }
}

}  // namespace quire::kernels::cpu
