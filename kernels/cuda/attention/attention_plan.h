#pragma once

// Divides the attention of one step over a persistent grid. The code is plain C++ and needs no
// device.
//
// A row is one pair (query, head). The rows of one sequence and one kv head are packed query by
// query: row = query * group + head within the group. So the heads of a decode share the keys that
// they read. A unit is a tile of rows, together with the keys that these rows see.
//
// Decodes that share their first keys read these in units of their own (shared_units.h), if the
// options say so.
//
// If the pattern has holes, a unit lists the tiles of keys that one of its rows sees
// (kernels/ops/attention_tiles.h), and its items are parts of that list.
//
// One kernel launch computes all units of AttnKernel, and a second one those of PrefillAttnKernel,
// if it is chosen. In a launch, the key tiles of all units are put one after another. This list is
// cut into equal contiguous ranges, one for each block of the grid (stream-K, arXiv:2301.03598). A
// tile counts the same for a decode and for 64 or 128 rows of a prompt, because it takes about as
// long. On an H200 at head_dim 128, a multiprocessor waits 1770 cycles for the bytes of a decode's
// tile, at 4.3 TB/s for all of them. For a prompt's it waits 1380 cycles, at 5.5 TB/s from L2, and
// with 128 rows it accesses shared memory for 1792. The cuts divide a unit into items. If a unit
// has several items, each item writes partial results: the output of its rows in float32, and their
// log-sum-exp in base 2. Then a merge combines the partial results.
//
// Such cuts depend on the whole batch, and so do the last bits of a result. With `fixed_split`, a
// row has the same bits in every step, alone or beside any other rows, as a decode or in a chunk of
// a prompt. This follows from four rules:
//   - All units have the same number of row tiles, the smallest, so the same code of the kernel
//     computes all rows.
//   - Units are cut where a position is a multiple of fixed_split_keys, and nowhere else.
//   - Every piece writes partial results, even if it is a whole unit, and the merge adds them up in
//     the order of their positions.
//   - A tile, or a piece, of which a row sees no key leaves the bits of the row as they are: its
//     weights are exactly 0.
// The partial results of a long chunk would take much memory. So the units are divided into parts
// of at most part_rows partial rows, which are computed and merged one after another, all with the
// same memory.
//
// With `skips_far_keys`, some items turn out to be short when they run (attn_horizon.cuh). So there
// are several ranges for each block, and the blocks draw them (attn_ranges.cuh).

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/attention/attention_items.h"
#include "kernels/cuda/attention/shared_units.h"
#include "kernels/ops/attention_tiles.h"
#include "kernels/ops/paged_attention.h"

namespace quire::kernels::cuda {

struct AttentionPlanOptions {
  int32_t grid_size = 1;            // thread blocks that run at once
  bool fixed_split = false;         // only without prefill_grid_size
  int32_t fixed_split_keys = 1024;  // a multiple of 64
  // The most partial rows of a part with a fixed split, unless its only unit has more. Their pieces
  // of 16 rows or fewer keep 264 blocks busy for 31 pieces each.
  int64_t part_rows = 1 << 17;
  // If true, items of sequences with more than one query have up to kMostWideItemRows rows. Ignored
  // with fixed_split.
  bool wide_items = false;
  // Blocks of PrefillAttnKernel that run at once. 0: there is no such kernel for the layer.
  int32_t prefill_grid_size = 0;
  // If false, shared keys are read for each sequence. Not allowed with fixed_split, because cuts
  // would depend on the batch.
  bool shares_keys = false;
  // If true, the kernel may skip keys of each item but those of PrefillAttnKernel. Not allowed with
  // fixed_split, because which keys are skipped depends on other requests.
  bool skips_far_keys = false;
  // Kernels count partial rows in int32, and fixed launches have a power of two of them.
  int64_t max_partial_rows = 1 << 30;
};

// Returns the ranges of items of a launch whose items have up to `row_tiles` row tiles: one for
// each block, or, if blocks draw them, eight for units of 16 rows, and fewer for larger units,
// which have larger partial results. Eight short ranges of a block leave at most an eighth of its
// work to the last one, and the device plans decodes in 34 KB of shared memory with 264 blocks.
int32_t NumRanges(int32_t row_tiles, const AttentionPlanOptions& options);

// The host's part of a decode step's plan that the device makes (plan_decodes.cuh).
struct DecodePlan {
  DecodeUnits units;
  int32_t num_ranges = 0;
  int32_t fixed_split_tiles = 0;  // the tiles from one cut to the next; 0: equal cuts
  int32_t most_items = 0;
};

// The largest sizes of plans for steps of up to args.most_tokens tokens and args.most_seqs
// sequences, which must be at most as many, if the pattern has no holes. With a fixed split, no
// sequence may have more than args.most_context_len keys.
struct PlanSizes {
  int64_t items = 0;
  int64_t merges = 0;
  int64_t parts = 0;
  int64_t block_starts = 0;  // of all parts
  int64_t partial_rows = 0;
  int64_t members = 0;
};
PlanSizes LargestPlan(const AttentionPlanArgs& args, const AttentionPlanOptions& options);

class CudaAttentionPlan final : public AttentionPlan {
 public:
  // The items of one kernel launch. Range r has items [block_starts[r], block_starts[r + 1]). Block
  // b computes range b, or draws ranges (NumRanges).
  struct Part {
    bool prefill = false;  // launches PrefillAttnKernel, not AttnKernel
    std::vector<AttentionItem> items;
    int64_t room = 0;  // the items for which an uploaded plan has room
    std::vector<int32_t> block_starts;
    // The next entries of merges(). Their launch follows that of the items, before the next part.
    int32_t num_merges = 0;
  };

  // Replaces the content with the plan for `args`. With args.fixed_launches, the device makes the
  // plan, and `decodes` says how. If the pattern has holes, or keys are shared, the host makes this
  // plan too. Then its parts have NumRanges() ranges, and there is one merge for each unit
  // that is not shared; unneeded ranges and merges are empty. Returns InvalidArgument when lengths
  // or heads contradict each other, and ResourceExhausted when the plan needs more partial rows
  // than the options allow.
  absl::Status Build(const AttentionPlanArgs& args, const AttentionPlanOptions& options);

  // Null if the host makes the plan. Otherwise parts, merges and tiles are empty.
  const DecodePlan* decodes() const { return decodes_ ? &*decodes_ : nullptr; }
  const std::vector<Part>& parts() const { return parts_; }  // only parts with items
  const std::vector<AttentionMerge>& merges() const { return merges_; }
  const std::vector<SeenTile>& tiles() const { return lists_.tiles(); }
  const std::vector<SharedMember>& members() const { return shared_.members(); }
  // The most partial rows that any part needs together with the parts before it whose merges have
  // not run.
  int32_t num_partial_rows() const { return num_partial_rows_; }
  int32_t most_merge_rows() const;  // the grid of the merge has room for this many rows
  bool fixed_launches() const { return fixed_launches_; }

 private:
  absl::Status Check(const AttentionPlanArgs& args, const AttentionPlanOptions& options);
  absl::Status SizeDecodes(const AttentionPlanArgs& args, const AttentionPlanOptions& options);
  // `num_units` are those that are not shared.
  void FixLaunches(int64_t num_units);
  // Returns whether PrefillAttnKernel processes a sequence. A decode stays with AttnKernel,
  // whatever its number of heads: its time is that of reading the keys, and its plan is made on the
  // device.
  bool IsPrefill(int64_t seq, const AttentionPlanOptions& options) const;
  // Returns the most rows of a unit of a sequence.
  int32_t MostRows(int64_t seq, bool prefill, const AttentionPlanOptions& options) const;
  // Returns the units of all sequences for which IsPrefill is `prefill`. Each unit is returned as
  // one item with all its keys.
  std::vector<AttentionItem> Units(bool prefill, const AttentionPlanOptions& options);
  // Returns the row tiles by which the launch of AttnKernel with these units has NumRanges.
  int32_t MostRowTiles(std::span<const AttentionItem> units) const;
  // Adds to `parts_` the parts with these units, if there are any.
  absl::Status AddParts(const std::vector<AttentionItem>& units, bool prefill,
                        const AttentionPlanOptions& options);
  // Returns the number of keys in a tile of a part.
  int32_t TileKeys(const Part& part) const {
    return part.prefill ? PrefillTileKeys(value_dim()) : AttentionTileKeys(value_dim());
  }
  // Lists the tiles of `unit`.
  void ListTiles(AttentionItem& unit);
  absl::Status CutEqually(const std::vector<AttentionItem>& units, int32_t num_ranges,
                          const AttentionPlanOptions& options, Part& part);
  // Adds the parts of a fixed split.
  absl::Status CutAtFixedKeys(const std::vector<AttentionItem>& units,
                              const AttentionPlanOptions& options);
  // Returns the cuts of a fixed split, as AddPieces wants them.
  std::vector<int32_t> FixedCuts(const AttentionItem& unit, int32_t piece_tiles) const;
  // Divides the items of a part of a fixed split over the blocks.
  void StartBlocks(int32_t grid_size, Part& part) const;
  // Cuts `unit` at the tiles `cuts` and adds the items to `part`. `cuts` starts with the first tile
  // of the unit and ends with the tile after its last one. If the unit lists its tiles, `cuts` are
  // indices of tiles().
  absl::Status AddPieces(const AttentionItem& unit, const std::vector<int32_t>& cuts,
                         const AttentionPlanOptions& options, Part& part);

  std::optional<DecodePlan> decodes_;
  std::vector<Part> parts_;
  std::vector<AttentionMerge> merges_;
  TileLists lists_;
  SharedUnits shared_;
  int32_t num_partial_rows_ = 0;
  int32_t next_partial_row_ = 0;  // of the part that is being made
  int32_t most_decode_rows_ = 0;  // of a unit
  int32_t num_ranges_ = 0;        // of the launch of AttnKernel
  bool fixed_launches_ = false;
};

}  // namespace quire::kernels::cuda
