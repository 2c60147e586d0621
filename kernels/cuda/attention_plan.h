#pragma once

// Divides one step's attention over a persistent grid. Plain C++, without a device.
//
// A unit is a tile of rows and the keys that they see. A row is one (query, head). The rows of one
// sequence and one kv head are packed query by query, row = query * group + head within the group,
// so that a decode's heads share the keys that they read. The tiles of keys of all units, one after
// another, are cut into equal contiguous ranges, one for each block of the grid (stream-K,
// arXiv:2301.03598). The cuts divide a unit into items. If a unit has more than one, each writes
// partial results, its rows' output in float32 and their log-sum-exp in base 2, and a merge adds
// them up.
//
// Cuts depend on the whole batch, and with them the last bits of a result. With `fixed_split` they
// depend only on the request, that is on its lengths in this step and the heads: a unit is cut into
// pieces of fixed_split_keys, or into longer ones if all units of the request would have more than
// kFixedSplitPieces pieces. This many fill any grid, and every further piece costs memory; a long
// chunk of a prompt has enough units, and none of them is cut. A request's partial results take at
// most kFixedSplitPieces * 64 rows, however long it is.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/attention_items.h"
#include "kernels/ops/paged_attention.h"

namespace quire::kernels::cuda {

struct AttentionPlanOptions {
  int32_t grid_size = 1;  // blocks that run at once
  bool fixed_split = false;
  int32_t fixed_split_keys = 1024;  // a multiple of 64
  // Kernels count partial rows in int32.
  int64_t max_partial_rows = std::numeric_limits<int32_t>::max();
};

// The most pieces of one request's units with a fixed split: about four for each block of an H200's
// grid of 264. With fewer, it would be noticeable that some blocks take one piece more than others.
inline constexpr int32_t kFixedSplitPieces = 1024;
// A block's range is never shorter, even if blocks stay idle: merging would cost more than it saves
// (FlashAttention-3 has the same minimum).
inline constexpr int32_t kMinRangeTiles = 4;

class CudaAttentionPlan final : public AttentionPlan {
 public:
  // The items of one kernel launch. Block b computes items [block_starts[b], block_starts[b + 1]).
  struct Part {
    int32_t row_tiles = 0;
    std::vector<AttentionItem> items;
    std::vector<int32_t> block_starts;
  };

  // InvalidArgument when lengths or heads contradict each other; ResourceExhausted when there would
  // be more partial rows than the options allow.
  absl::Status Build(const AttentionPlanArgs& args, const AttentionPlanOptions& options);

  // Checks that `args`, which are valid by themselves, belong to the step of this plan.
  // InvalidArgument names the difference, or that the block table is too short.
  absl::Status CheckMatches(const PagedAttentionArgs& args) const;

  const std::vector<Part>& parts() const { return parts_; }  // those with items
  const std::vector<AttentionMerge>& merges() const { return merges_; }
  int32_t num_partial_rows() const { return num_partial_rows_; }
  int64_t num_seqs() const { return static_cast<int64_t>(query_lens_.size()); }
  int64_t num_tokens() const { return num_tokens_; }
  int32_t query_len(int64_t seq) const { return query_lens_[static_cast<size_t>(seq)]; }
  int32_t context_len(int64_t seq) const { return context_lens_[static_cast<size_t>(seq)]; }
  int32_t num_heads() const { return num_heads_; }
  int32_t num_kv_heads() const { return num_kv_heads_; }
  int32_t head_dim() const { return head_dim_; }
  int32_t window() const { return window_; }

 private:
  absl::Status Check(const AttentionPlanArgs& args, const AttentionPlanOptions& options);
  // The units of one row tile size, as items that see all their keys.
  std::vector<AttentionItem> Units(int32_t row_tiles) const;
  absl::Status CutEqually(const std::vector<AttentionItem>& units,
                          const AttentionPlanOptions& options, Part& part);
  absl::Status CutAtFixedKeys(const std::vector<AttentionItem>& units,
                              const AttentionPlanOptions& options, Part& part);
  // Adds the unit's items, cut at the tiles `cuts`, which include its first and last border.
  absl::Status AddPieces(const AttentionItem& unit, const std::vector<int32_t>& cuts,
                         const AttentionPlanOptions& options, Part& part);

  std::vector<Part> parts_;
  std::vector<AttentionMerge> merges_;
  std::vector<int32_t> query_lens_, context_lens_;
  int64_t num_tokens_ = 0;
  int32_t num_partial_rows_ = 0;
  int32_t num_heads_ = 0, num_kv_heads_ = 0, head_dim_ = 0, window_ = 0;
};

}  // namespace quire::kernels::cuda
